import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.training import RowLayout
from raggrpo_api.status.job_status import JobStatus, Pinned
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.lifecycle.observed import Observed
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.lifecycle.warnings import update_warnings
from raggrpo_operator.core.rules import (
    RULES,
    agent,
    batch,
    checkpoint,
    cluster,
    lengths,
    limits,
    lora,
    memory,
    monitoring,
    names_and_secrets,
    numerics,
    output,
    paths,
    retrieval,
    reward,
    servers,
    sources,
    violations,
    world,
)
from raggrpo_operator.core.rules.base.rule_input import Rule, RuleInput
from raggrpo_operator.core.rules.base.spec_rule import ServerRule, SpecRule
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Reason, Severity, Violation, errors
from raggrpo_operator.core.text.plan import render_plan
from raggrpo_operator.crd import job_schema
from raggrpo_operator.local_runtime.mounts import apply_mounts
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, SAMPLES, make_job, make_sample
from support.fakes.fake_runtime import T0

RANDOM_KEY = "q7Zt2Lk9Xw4Vb8Nc1Rm5Hj3P"
KB = {"name": "kb", "url": "http://kb:8000/retrieve"}
SEARCH = KB | {"protocol": "Http", "body": {"query": "{question}", "size": "{top_k}"}}
ACTOR = {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": "http://a:1/chat"}
REFERENCE = ACTOR | {"name": "reference", "role": "Reference"}
RAG_SCORE = {"functions": [{"name": "RagScore"}]}
REF = {"name": "rag", "key": "token"}
WORK = {"name": "work", "claimName": "work", "mountPath": "/mnt/runs"}
HUB = "hf://org/name@main"
CREATED = {"name": "work", "claimTemplate": {"size": "1Gi"}, "mountPath": "/mnt/runs"}
GPUS8 = {"gpusPerNode": 8, "gpuMemoryGib": 80}
SPLIT = {"gpusPerNode": 4, "gpuMemoryGib": 80, "placement": "Disaggregated", "rolloutGpus": 4}
NO_FACTS = Facts()
CORPUS = {"corpus": "/mnt/runs/corpus.jsonl"}
VOLUMES = [
    {"name": "runs", "claimName": "runs", "mountPath": "/mnt/runs"},
    {"name": "models", "claimName": "models", "mountPath": "/mnt/models", "readOnly": True},
]
MEASURED = {
    "checkpoint.bestBy": "ValidationReward",
    "validation.everySteps": 100,
    "data.validationFiles": ["/mnt/runs/v.jsonl"],
}
DENSE = CORPUS | {"index": "Dense", "embedding": {"path": "/mnt/runs/e5"}}
MANAGED = {"name": "kb", "managed": CORPUS}


def with_steps(**changes: Any) -> dict[str, Any]:
    return {"training": {"totalSteps": 1000} | changes}


def with_lora(**changes: Any) -> dict[str, Any]:
    return with_steps(lora={}, **changes)


def with_targets(*targets: str) -> dict[str, Any]:
    return with_steps(lora={"targets": list(targets)})


AGENT = {"python": "app:answer"}
LOCAL_SERVICE = {"type": "Http", "url": "http://app:8000/answer", "identify": "Trace"}
SERVICE = LOCAL_SERVICE | {"allowFrom": {"namespace": "apps", "podSelector": "app=support"}}
CONTAINER = {"type": "Container", "identify": "Trace"}


def in_container(**values: Any) -> dict[str, Any]:
    return {"rollout.agent": CONTAINER | {"container": {"image": "app:1"} | values}}


def with_agent_env(**values: Any) -> dict[str, Any]:
    return in_container(env=[{"name": "A"} | values])


def with_agent(values: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {"rollout.agent": {**values, **changes}}


def forward(
    *models: list[str], url: str = "http://j/v1", secrets: Sequence[str] = ()
) -> list[dict[str, Any]]:
    entries = [{"models": names, "url": url} for names in models]
    keys = [{"apiKeySecret": {"name": name, "key": "key"}} for name in secrets] or [{}, {}]
    return [entry | key for entry, key in zip(entries, keys, strict=False)]


def in_mode(mode: str, *endpoints: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {"retrieval": {"mode": mode, "endpoints": list(endpoints)} | changes}


def rewarded_by(*functions: Mapping[str, Any]) -> dict[str, Any]:
    return {"reward": {"functions": list(functions)}}


def make_judge(**values: Any) -> dict[str, Any]:
    judge = {"model": "j", "prompt": "Grade {completion} for {prompt}."} | values
    return rewarded_by({"name": "Judge", "url": "http://j/v1/chat/completions", "judge": judge})


@dataclass(frozen=True)
class Row:
    """A job that violates the rule, and a similar one that does not."""

    rule: Rule | SpecRule
    reason: Reason
    path: str
    fails: dict[str, Any]
    passes: dict[str, Any]
    facts: Facts = NO_FACTS
    status: JobStatus = field(default_factory=JobStatus)
    severity: Severity = Severity.ERROR
    in_pods: bool = True


WARNING = Severity.WARNING

ROWS: tuple[Row, ...] = (
    Row(batch.group_size_equals_n, Reason.GROUP_SIZE_MISMATCH, "spec.rollout.n",
        {"rollout": {"n": 3}, "algorithm": {"groupSize": 5}},
        {"rollout": {"n": 5}, "algorithm": {"groupSize": 5}}),
    Row(batch.n_is_at_least_two, Reason.GROUP_TOO_SMALL, "spec.rollout.n",
        {"rollout": {"n": 1}}, {"rollout": {"n": 2}}),
    Row(batch.group_size_is_at_least_two, Reason.GROUP_TOO_SMALL, "spec.algorithm.groupSize",
        {"algorithm": {"groupSize": 1}}, {"algorithm": {"groupSize": 2}}),
    Row(batch.ranks_get_prompts, Reason.BATCH_SMALLER_THAN_WORLD,
        "spec.training.miniBatchPrompts",
        {"data.trainBatchSize": 4, "resources": GPUS8},
        {"data.trainBatchSize": 8, "resources": GPUS8}),
    Row(batch.ranks_get_completions, Reason.BATCH_SMALLER_THAN_WORLD,
        "spec.training.miniBatchPrompts",
        {"data.trainBatchSize": 2, "resources": GPUS8} | with_steps(rowLayout="Padded"),
        {"data.trainBatchSize": 8, "resources": GPUS8} | with_steps(rowLayout="Padded")),
    Row(batch.ranks_get_equal_work, Reason.BATCH_UNEVEN_OVER_RANKS,
        "spec.training.miniBatchPrompts",
        {"data.trainBatchSize": 12, "resources": GPUS8},
        {"data.trainBatchSize": 16, "resources": GPUS8}, severity=WARNING),
    Row(batch.mini_batch_divides_batch, Reason.MINI_BATCH_NOT_DIVISOR,
        "spec.training.miniBatchPrompts",
        {"data.trainBatchSize": 128} | with_steps(miniBatchPrompts=48),
        {"data.trainBatchSize": 128} | with_steps(miniBatchPrompts=64)),
    Row(batch.micro_batch_holds_a_sequence, Reason.MICRO_BATCH_TOO_SMALL,
        "spec.training.tokensPerMicroBatch",
        with_steps(tokensPerMicroBatch=1535), with_steps(tokensPerMicroBatch=2560)),
    Row(batch.micro_batch_holds_a_group, Reason.GROUP_EXCEEDS_MICRO_BATCH,
        "spec.training.tokensPerMicroBatch",
        with_steps(tokensPerMicroBatch=2559),
        with_steps(tokensPerMicroBatch=2559, rowLayout="Padded"), severity=WARNING),
    Row(lengths.run_has_a_target, Reason.NO_TARGET, "spec.training.totalSteps",
        {"training": {}}, {"training": {"epochs": 1}}),
    Row(lengths.run_has_one_target, Reason.TWO_TARGETS, "spec.training.epochs",
        {"training": {"epochs": 1, "totalSteps": 5}}, {"training": {"epochs": 1}}),
    Row(lengths.epochs_fit_max_steps, Reason.TOO_MANY_STEPS, "spec.training.epochs",
        {"training": {"epochs": 10_000}, "data.trainBatchSize": 8},
        {"training": {"epochs": 8000}, "data.trainBatchSize": 8}, Facts(rows=10_000)),
    Row(lengths.batch_fits_max_samples, Reason.BATCH_LARGER_THAN_DATA, "spec.data.trainBatchSize",
        {"preset": "Debug", "data.trainBatchSize": 11},
        {"preset": "Debug", "data.trainBatchSize": 10}),
    Row(lengths.batch_fits_data, Reason.BATCH_LARGER_THAN_DATA, "spec.data.trainBatchSize",
        {"data.trainBatchSize": 101}, {"data.trainBatchSize": 100}, Facts(rows=100)),
    Row(lengths.steps_fit_data, Reason.DATA_REPEATS, "spec.training.totalSteps",
        {"data.trainBatchSize": 11}, {"data.trainBatchSize": 10}, KNOWN_7B, severity=WARNING),
    Row(lengths.engine_step_holds_a_sequence, Reason.BATCHED_TOKENS_TOO_FEW,
        "spec.rollout.maxNumBatchedTokens",
        {"rollout": {"maxNumBatchedTokens": 1535}}, {"rollout": {"maxNumBatchedTokens": 1536}}),
    Row(lengths.sequence_fits_context, Reason.CONTEXT_TOO_SHORT, "spec.data.maxPromptLength",
        {"data.maxPromptLength": 1537}, {"data.maxPromptLength": 1536}, KNOWN_TINY),
    Row(lengths.passages_leave_room, Reason.PASSAGES_DO_NOT_FIT, "spec.data.maxPromptLength",
        in_mode("Prompt", KB, maxPassageTokens=342),
        in_mode("Prompt", KB, maxPassageTokens=341)),
    Row(lengths.truncated_passages_leave_room, Reason.PASSAGES_DO_NOT_FIT,
        "spec.data.maxPromptLength",
        in_mode("Prompt", KB, maxPassageTokens=342) | {"data.allowTruncation": True},
        in_mode("Prompt", KB), severity=WARNING),
    Row(lengths.passages_leave_room, Reason.PASSAGES_DO_NOT_FIT, "spec.data.maxPromptLength",
        in_mode("Prompt", KB, maxPassageTokens=100) | {"data.maxPromptLength": 300},
        in_mode("Prompt", KB, maxPassageTokens=100) | {"data.maxPromptLength": 301}),
    Row(lengths.searches_leave_room, Reason.SEARCHES_DO_NOT_FIT, "spec.data.maxResponseLength",
        in_mode("Search", KB, maxPassageTokens=86), in_mode("Search", KB, maxPassageTokens=85)),
    Row(lengths.searches_leave_room, Reason.SEARCHES_DO_NOT_FIT, "spec.data.maxResponseLength",
        in_mode("Search", KB, maxPassageTokens=85) | {"data.maxResponseLength": 510},
        in_mode("Search", KB, maxPassageTokens=85) | {"data.maxResponseLength": 511}),
    Row(memory.utilization_leaves_room_for_trainer, Reason.UTILIZATION_TOO_HIGH,
        "spec.rollout.gpuMemoryUtilization",
        {"rollout": {"gpuMemoryUtilization": 0.75}},
        {"rollout": {"gpuMemoryUtilization": 0.75}, "resources": SPLIT}),
    Row(memory.utilization_leaves_room_for_trainer, Reason.UTILIZATION_TOO_HIGH,
        "spec.rollout.gpuMemoryUtilization",
        {"rollout": {"gpuMemoryUtilization": 0.95}, "resources": SPLIT},
        {"rollout": {"gpuMemoryUtilization": 0.9}, "resources": SPLIT}),
    Row(memory.utilization_leaves_room_for_cache, Reason.UTILIZATION_TOO_LOW,
        "spec.rollout.gpuMemoryUtilization",
        {"rollout": {"gpuMemoryUtilization": 0.25}},
        {"rollout": {"gpuMemoryUtilization": 0.25}, "resources": {"device": "CPU"}},
        severity=WARNING),
    Row(memory.training_state_fits, Reason.TRAINING_STATE_DOES_NOT_FIT,
        "spec.rollout.gpuMemoryUtilization",
        {}, {"resources": GPUS8}, KNOWN_7B),
    Row(memory.training_state_fits, Reason.TRAINING_STATE_DOES_NOT_FIT,
        "spec.rollout.gpuMemoryUtilization",
        {"resources": {"gpusPerNode": 1}}, {"resources": {"gpusPerNode": 8}}, KNOWN_7B),
    Row(memory.gpu_memory_is_known, Reason.GPU_MEMORY_UNKNOWN, "spec.resources.gpuMemoryGib",
        {"resources": {"gpusPerNode": 8}}, {"resources": GPUS8}, KNOWN_7B, severity=WARNING),
    Row(memory.kv_cache_holds_sequences, Reason.KV_CACHE_IS_SHORT, "spec.rollout.maxNumSeqs",
        {"resources": GPUS8, "data.maxResponseLength": 16_000},
        {"resources": GPUS8}, KNOWN_7B, severity=WARNING),
    Row(numerics.bf16_is_available, Reason.BF16_UNAVAILABLE, "spec.training.precision",
        {"resources": GPUS8}, {"resources": GPUS8} | with_steps(precision="FP16"),
        KNOWN_7B.model_copy(update={"gpu_compute_major": 7, "gpu_product": "Tesla-V100"})),
    Row(memory.activations_fit, Reason.ACTIVATIONS_MAY_NOT_FIT,
        "spec.training.tokensPerMicroBatch",
        {"resources": GPUS8 | {"gpuMemoryGib": 48}},
        {"resources": GPUS8 | {"gpuMemoryGib": 48}} | with_steps(gradientCheckpointing=True),
        KNOWN_7B, severity=WARNING),
    Row(memory.weights_fit_engine, Reason.WEIGHTS_DO_NOT_FIT, "spec.rollout.gpuMemoryUtilization",
        {"resources": {"gpusPerNode": 8, "gpuMemoryGib": 24}},
        {"resources": {"gpusPerNode": 8, "gpuMemoryGib": 24}, "rollout": {"tensorParallelSize": 2}},
        KNOWN_7B),
    Row(memory.weights_fit_engine, Reason.WEIGHTS_DO_NOT_FIT, "spec.rollout.gpuMemoryUtilization",
        {"resources": GPUS8, "data.maxPromptLength": 600_000},
        {"resources": GPUS8, "data.maxResponseLength": 500_000}, KNOWN_7B),
    Row(memory.weights_fit_engine, Reason.WEIGHTS_DO_NOT_FIT, "spec.rollout.gpuMemoryUtilization",
        {"resources": GPUS8, "data.maxResponseLength": 600_000},
        {"resources": GPUS8, "data.maxPromptLength": 500_000}, KNOWN_7B),
    Row(memory.eager_only_where_memory_is_short, Reason.EAGER_IS_SLOW, "spec.rollout.enforceEager",
        {"rollout": {"enforceEager": True}},
        {"preset": "MemoryLimited", "rollout": {"enforceEager": True}}, severity=WARNING),
    Row(memory.eager_only_where_memory_is_short, Reason.EAGER_IS_SLOW, "spec.rollout.enforceEager",
        {"preset": "MaxPerformance", "rollout": {"enforceEager": True}},
        {"preset": "Debug", "rollout": {"enforceEager": True}}, severity=WARNING),
    Row(memory.shm_is_below_memory, Reason.SHM_EXCEEDS_MEMORY, "spec.resources.shmSize",
        {"resources": {"memory": "64Gi", "shmSize": "64Gi"}},
        {"resources": {"memory": "65Gi", "shmSize": "64Gi"}}),
    Row(memory.derived_shm_is_below_memory, Reason.SHM_EXCEEDS_MEMORY, "spec.resources.shmSize",
        {"resources": {"shmSize": "", "memory": "128Mi"}}, {"resources": {"memory": "64Gi"}}),
    Row(memory.memory_covers_estimate, Reason.MEMORY_BELOW_ESTIMATE, "spec.resources.memory",
        {"resources": {"memory": "8Gi"}}, {"resources": {"memory": "64Gi"}}, severity=WARNING),
    Row(memory.memory_covers_estimate, Reason.MEMORY_BELOW_ESTIMATE, "spec.resources.shmSize",
        {"resources": {"shmSize": "1Gi"}}, {"resources": {"shmSize": "16Gi"}}, severity=WARNING),
    Row(memory.retriever_memory_covers_index, Reason.RETRIEVER_MEMORY_TOO_SMALL,
        "spec.retrieval.endpoints[0].managed.memory",
        in_mode("Prompt", {"name": "kb", "managed": CORPUS | {"memory": "4Gi"}}),
        in_mode("Prompt", {"name": "kb", "managed": CORPUS | {"memory": "5Gi"}}),
        Facts(corpus_bytes=2**30)),
    Row(memory.retriever_memory_covers_index, Reason.RETRIEVER_MEMORY_TOO_SMALL,
        "spec.retrieval.endpoints[0].managed.memory",
        in_mode("Prompt", {"name": "kb", "managed": DENSE | {"memory": "6Gi"}}),
        in_mode("Prompt", {"name": "kb", "managed": DENSE | {"memory": "7Gi"}}),
        Facts(corpus_bytes=2**30, corpus_passages=2**18, embedding_dimension=2**11,
              embedding_parameters=2**27)),
    Row(world.gpus_are_requested, Reason.NO_GPUS, "spec.resources.gpusPerNode",
        {"resources": {"gpusPerNode": 0}}, {"resources": {"gpusPerNode": 0, "device": "CPU"}}),
    Row(world.disaggregated_has_rollout_gpus, Reason.ROLLOUT_GPUS_MISMATCH,
        "spec.resources.rolloutGpus",
        {"resources": {"gpusPerNode": 4, "placement": "Disaggregated"}}, {"resources": SPLIT}),
    Row(world.rollout_engines_match_placement, Reason.ROLLOUT_ENGINES_MISMATCH,
        "spec.resources.rolloutEngines",
        {"resources": {"device": "CPU", "rolloutEngines": 2}},
        {"resources": {"device": "CPU", "rolloutEngines": 2, "placement": "Disaggregated"}}),
    Row(world.rollout_engines_match_placement, Reason.ROLLOUT_ENGINES_MISMATCH,
        "spec.resources.rolloutEngines",
        {"resources": SPLIT | {"rolloutEngines": 2}}, {"resources": SPLIT}),
    Row(world.colocated_has_no_rollout_gpus, Reason.ROLLOUT_GPUS_MISMATCH,
        "spec.resources.rolloutGpus",
        {"resources": {"gpusPerNode": 4, "rolloutGpus": 4}}, {"resources": GPUS8}),
    Row(world.colocated_engine_has_one_gpu, Reason.TENSOR_PARALLEL_UNSUPPORTED,
        "spec.rollout.tensorParallelSize",
        {"resources": GPUS8, "rollout": {"tensorParallelSize": 2}},
        {"resources": SPLIT, "rollout": {"tensorParallelSize": 2}}),
    Row(world.cpu_engine_is_one_process, Reason.TENSOR_PARALLEL_UNSUPPORTED,
        "spec.rollout.tensorParallelSize",
        {"resources": {"device": "CPU"}, "rollout": {"tensorParallelSize": 2}},
        {"resources": SPLIT, "rollout": {"tensorParallelSize": 2}}),
    Row(world.tensor_parallel_divides_rollout_gpus, Reason.TENSOR_PARALLEL_NOT_DIVISOR,
        "spec.rollout.tensorParallelSize",
        {"resources": SPLIT, "rollout": {"tensorParallelSize": 3}},
        {"resources": SPLIT, "rollout": {"tensorParallelSize": 2}}),
    Row(world.tensor_parallel_divides_heads, Reason.HEADS_NOT_DIVISIBLE,
        "spec.rollout.tensorParallelSize",
        {"resources": GPUS8, "rollout": {"tensorParallelSize": 8}},
        {"resources": GPUS8, "rollout": {"tensorParallelSize": 4}}, KNOWN_7B),
    Row(world.workers_fit_cpus, Reason.WORKERS_EXCEED_CPUS, "spec.data.numWorkers",
        {"data.numWorkers": 9}, {"data.numWorkers": 8}, severity=WARNING),
    Row(world.ray_version_is_unchanged, Reason.RAY_VERSION_MISMATCH, "spec.image",
        {}, {}, KNOWN_7B, status=JobStatus(attempt=1, pinned=Pinned(ray_version="2.59.0"))),
    Row(world.async_needs_disaggregation, Reason.ASYNC_NEEDS_DISAGGREGATION,
        "spec.training.offPolicySteps",
        with_steps(offPolicySteps=1), with_steps(offPolicySteps=1) | {"resources": SPLIT}),
    Row(world.rollout_optimizations_are_enabled, Reason.ROLLOUT_OPTIMIZATION_OFF,
        "spec.rollout.enablePrefixCaching",
        {"rollout": {"enablePrefixCaching": False}}, {"rollout": {"enablePrefixCaching": True}},
        severity=WARNING),
    Row(world.rollout_optimizations_are_enabled, Reason.ROLLOUT_OPTIMIZATION_OFF,
        "spec.rollout.enableChunkedPrefill",
        {"rollout": {"enableChunkedPrefill": False}}, {"rollout": {"enableChunkedPrefill": True}},
        severity=WARNING),
    Row(retrieval.endpoint_has_one_source, Reason.ENDPOINT_SOURCE, "spec.retrieval.endpoints[0]",
        in_mode("Prompt", KB | MANAGED), in_mode("Prompt", MANAGED)),
    Row(retrieval.endpoint_has_one_source, Reason.ENDPOINT_SOURCE, "spec.retrieval.endpoints[0]",
        in_mode("Prompt", {"name": "kb"}), in_mode("Prompt", KB)),
    Row(retrieval.index_has_embedding_model, Reason.EMBEDDING_NEEDED,
        "spec.retrieval.endpoints[0].managed.embedding",
        in_mode("Prompt", {"name": "kb", "managed": CORPUS | {"index": "Hybrid"}}),
        in_mode("Prompt", {"name": "kb", "managed": DENSE})),
    Row(retrieval.embedding_model_is_used, Reason.EMBEDDING_UNUSED,
        "spec.retrieval.endpoints[0].managed.index",
        in_mode("Prompt", {"name": "kb", "managed": DENSE | {"index": "BM25"}}),
        in_mode("Prompt", {"name": "kb", "managed": DENSE | {"index": "Hybrid"}})),
    Row(retrieval.embedding_model_is_used, Reason.EMBEDDING_UNUSED,
        "spec.retrieval.endpoints[0].managed.index",
        in_mode("Prompt", {"name": "kb", "managed": CORPUS | {"vectors": "/mnt/runs/v.npy"}}),
        in_mode("Prompt", {"name": "kb", "managed": DENSE | {"vectors": "/mnt/runs/v.npy"}})),
    Row(retrieval.protocol_fits_role, Reason.PROTOCOL_MISMATCH,
        "spec.retrieval.endpoints[0].protocol",
        in_mode("Reward", ACTOR | {"protocol": "SearchR1"}), in_mode("Reward", ACTOR)),
    Row(retrieval.fields_fit_protocol, Reason.PROTOCOL_MISMATCH,
        "spec.retrieval.endpoints[0].body",
        in_mode("Prompt", KB | {"body": {"q": "{question}"}}), in_mode("Prompt", SEARCH)),
    Row(retrieval.fields_fit_protocol, Reason.PROTOCOL_MISMATCH,
        "spec.retrieval.endpoints[0].extraBody",
        in_mode("Prompt", SEARCH | {"extraBody": {"a": 1}}), in_mode("Prompt", SEARCH)),
    Row(retrieval.body_is_not_json_text, Reason.BODY_IS_TEXT,
        "spec.retrieval.endpoints[0].body",
        in_mode("Prompt", SEARCH | {"body": '{"query": "{question}"}'}),
        in_mode("Prompt", SEARCH | {"body": "{question}"})),
    Row(retrieval.calls_contain_the_question, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.endpoints[0].body",
        in_mode("Prompt", SEARCH | {"body": {"k": "{top_k}"}}), in_mode("Prompt", SEARCH)),
    Row(retrieval.calls_contain_the_question, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.endpoints[0].extraBody",
        in_mode("Prompt", KB | {"extraBody": {"t": "{tenant}"}}),
        in_mode("Prompt", KB | {"extraBody": {"t": ["{top_k}", {"id": "{message_id}"}]}})),
    Row(retrieval.passages_have_a_retriever, Reason.RETRIEVER_NEEDED, "spec.retrieval.endpoints",
        in_mode("Prompt"), in_mode("Prompt", KB)),
    Row(retrieval.passages_have_a_retriever, Reason.RETRIEVER_NEEDED, "spec.retrieval.endpoints",
        in_mode("Search", KB, KB | {"name": "kb2"}), in_mode("Search", KB, ACTOR)),
    Row(retrieval.rag_score_has_endpoints, Reason.RAG_ENDPOINTS_NEEDED,
        "spec.retrieval.endpoints",
        in_mode("Reward", ACTOR) | {"reward": RAG_SCORE},
        in_mode("Reward", ACTOR, REFERENCE) | {"reward": RAG_SCORE}),
    Row(retrieval.rag_score_has_mode_reward, Reason.RAG_ENDPOINTS_NEEDED,
        "spec.retrieval.mode",
        in_mode("None", ACTOR, REFERENCE) | {"reward": RAG_SCORE}, in_mode("None")),
    Row(retrieval.actor_writes_required_fields, Reason.RAG_FIELD_MISSING,
        "spec.retrieval.actorOutput.fields",
        in_mode("Reward", ACTOR, REFERENCE, actorOutput={"fields": ["user_profile"]})
        | {"reward": RAG_SCORE},
        in_mode("Reward", ACTOR, REFERENCE) | {"reward": RAG_SCORE}),
    Row(retrieval.endpoints_are_used, Reason.ENDPOINT_UNUSED, "spec.retrieval.endpoints[0]",
        in_mode("None", KB), in_mode("Prompt", KB), severity=WARNING),
    Row(retrieval.endpoints_are_used, Reason.ENDPOINT_UNUSED, "spec.retrieval.endpoints[0]",
        in_mode("Reward", ACTOR), in_mode("Reward", ACTOR) | {"reward": RAG_SCORE},
        severity=WARNING),
    Row(retrieval.prompt_template_is_complete, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.promptTemplate",
        in_mode("Prompt", KB, promptTemplate="{prompt}"),
        in_mode("Prompt", KB, promptTemplate="{passages}{prompt} {{x}}")),
    Row(retrieval.templates_are_valid, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.promptTemplate",
        in_mode("Prompt", KB, promptTemplate='{passages}{prompt} {"x": 1}'), in_mode("Prompt", KB)),
    Row(retrieval.templates_are_valid, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.promptTemplate",
        in_mode("Prompt", KB, promptTemplate="{{passages}}{prompt}"), in_mode("Prompt", KB)),
    Row(retrieval.passage_template_is_complete, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.passageTemplate",
        in_mode("Search", KB, passageTemplate="{index}"), in_mode("Search", KB)),
    Row(retrieval.templates_are_valid, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.passageTemplate",
        in_mode("Search", KB, passageTemplate="{index}: {text"), in_mode("Search", KB)),
    Row(retrieval.fields_fit_protocol, Reason.PROTOCOL_MISMATCH,
        "spec.retrieval.endpoints[0].body",
        in_mode("Prompt", SEARCH | {"method": "GET"}),
        in_mode("Prompt", KB | {"protocol": "Http", "method": "GET",
                                "url": "http://kb/?q={question}"})),
    Row(retrieval.fields_fit_protocol, Reason.PROTOCOL_MISMATCH,
        "spec.retrieval.endpoints[0].method",
        in_mode("Prompt", KB | {"method": "GET"}), in_mode("Prompt", KB | {"method": "POST"})),
    Row(retrieval.fields_fit_protocol, Reason.PROTOCOL_MISMATCH,
        "spec.retrieval.endpoints[0].response",
        in_mode("Prompt", KB | {"response": {"items": "hits"}}),
        in_mode("Prompt", SEARCH | {"response": {"items": "hits"}})),
    Row(retrieval.http_endpoint_has_url, Reason.PROTOCOL_MISMATCH,
        "spec.retrieval.endpoints[0].protocol",
        in_mode("Prompt", MANAGED | {"protocol": "Http", "body": {"q": "{question}"}}),
        in_mode("Prompt", MANAGED)),
    Row(retrieval.calls_contain_the_question, Reason.TEMPLATE_PLACEHOLDER,
        "spec.retrieval.endpoints[0].body",
        in_mode("Prompt", SEARCH | {"body": "{top_k} {score_threshold} {message_id}"}),
        in_mode("Prompt", SEARCH | {"body": "{top_k} {score_threshold} {message_id} {tenant}"})),
    Row(retrieval.actor_writes_required_fields, Reason.RAG_FIELD_MISSING,
        "spec.retrieval.actorOutput.fields",
        in_mode("Reward", REFERENCE, actorOutput={"fields": ["user_profile"]})
        | {"reward": RAG_SCORE},
        in_mode("Reward", ACTOR | {"protocol": "Http", "body": {"q": "{question}"}}, REFERENCE,
                actorOutput={"fields": ["user_profile"]}) | {"reward": RAG_SCORE}),
    Row(reward.http_reward_has_url, Reason.REWARD_INCOMPLETE, "spec.reward.functions[0].url",
        make_judge() | {"reward.functions": [make_judge()["reward"]["functions"][0] | {"url": ""}]},
        make_judge()),
    Row(reward.judge_can_grade, Reason.JUDGE_UNREADABLE,
        "spec.reward.functions[0].judge.scorePattern",
        make_judge(scorePattern=r"(\d+)", scorePath="score"), make_judge(scorePath="score")),
    Row(reward.reward_fields_are_used, Reason.REWARD_FIELD_UNUSED,
        "spec.reward.functions[0].judge",
        rewarded_by({"name": "F1", "judge": {"model": "j", "prompt": "Grade {completion}."}}),
        make_judge(), severity=WARNING),
    Row(reward.template_context_is_named, Reason.COLUMN_NEEDED, "spec.data.columns.context",
        {"data.columns": {"context": ""}} | make_judge(prompt="Is {completion} in {context}?"),
        {"data.columns": {"context": ""}} | make_judge()),
    Row(reward.judge_has_model, Reason.REWARD_INCOMPLETE, "spec.reward.functions[0].judge",
        rewarded_by({"name": "Judge", "url": "http://j/v1/chat/completions"}), make_judge()),
    Row(reward.judge_can_grade, Reason.TEMPLATE_PLACEHOLDER,
        "spec.reward.functions[0].judge.prompt", make_judge(prompt="Grade {prompt}."),
            make_judge()),
    Row(reward.judge_can_grade, Reason.JUDGE_UNREADABLE,
        "spec.reward.functions[0].judge.scorePattern", make_judge(scorePattern="(("),
        make_judge(scorePattern=r"Grade: (\d+)")),
    Row(reward.judge_has_a_range, Reason.JUDGE_UNREADABLE,
        "spec.reward.functions[0].judge.highest", make_judge(lowest=10.0), make_judge(lowest=1.0)),
    Row(reward.python_reward_has_function, Reason.REWARD_INCOMPLETE,
        "spec.reward.functions[0].python",
        {"reward": {"functions": [{"name": "Python"}]}},
        {"reward": {"functions": [{"name": "Python", "python": "pkg.mod:f"}]}}),
    Row(reward.http_reward_has_url, Reason.REWARD_INCOMPLETE, "spec.reward.functions[0].url",
        {"reward": {"functions": [{"name": "Http"}]}},
        {"reward": {"functions": [{"name": "Http", "url": "http://judge:1/score"}]}}),
    Row(reward.reward_fields_are_used, Reason.REWARD_FIELD_UNUSED,
        "spec.reward.functions[0].python",
        {"reward": {"functions": [{"name": "F1", "python": "pkg.mod:f"}]}},
        {"reward": {"functions": [{"name": "F1"}]}}, severity=WARNING),
    Row(reward.reward_fields_are_used, Reason.REWARD_FIELD_UNUSED,
        "spec.reward.functions[0].signature", rewarded_by({"name": "F1", "signature": "Verl"}),
        rewarded_by({"name": "Python", "python": "pkg.mod:f", "signature": "Verl"}),
        severity=WARNING),
    Row(reward.reward_fields_are_used, Reason.REWARD_FIELD_UNUSED, "spec.reward.functions[0].url",
        {"reward": {"functions": [{"name": "F1", "url": "http://judge:1/score"}]}},
        {"reward": {"functions": [{"name": "F1"}]}}, severity=WARNING),
    Row(reward.reward_has_weight, Reason.NO_REWARD, "spec.reward.functions",
        {"reward": {"functions": [{"name": "F1", "weight": 0.0}]}},
        {"reward": {"functions": [{"name": "F1", "weight": 0.0}, {"name": "Contains"}]}}),
    Row(reward.prompt_column_is_named, Reason.COLUMN_NEEDED, "spec.data.columns.prompt",
        {"data.columns": {"prompt": ""}}, {"data.columns": {"prompt": "question"}}),
    Row(reward.answer_column_is_named, Reason.COLUMN_NEEDED, "spec.data.columns.answer",
        {"data.columns": {"answer": ""}},
        {"data.columns": {"answer": ""}, "reward": {"functions": [{"name": "Format"}]}}),
    Row(reward.context_column_is_named, Reason.COLUMN_NEEDED, "spec.data.columns.context",
        {"data.columns": {"context": ""}, "reward": RAG_SCORE}, {"data.columns": {"context": ""}}),
    Row(checkpoint.restarts_need_checkpoints, Reason.RESTARTS_NEED_CHECKPOINTS,
        "spec.checkpoint.everySteps",
        {"checkpoint.everySteps": 0},
        {"checkpoint.everySteps": 0, "recovery": {"maxRestarts": 0}}),
    Row(checkpoint.start_has_one_source, Reason.START_SOURCE_AMBIGUOUS,
        "spec.training.startFrom.checkpoint",
        {"training.startFrom": {"checkpoint": {"path": "/mnt/runs/other", "jobRef": "other"}}},
        {"training.startFrom": {"checkpoint": {"jobRef": "other"}}}),
    Row(checkpoint.start_has_one_source, Reason.START_SOURCE_AMBIGUOUS,
        "spec.training.startFrom.checkpoint",
        {"training.startFrom": {"checkpoint": {"path": ""}}},
        {"training.startFrom": {"checkpoint": {"path": "/mnt/runs/other"}}}),
    Row(checkpoint.start_is_another_folder, Reason.START_IS_OWN_PATH,
        "spec.training.startFrom.checkpoint.path",
        {"training.startFrom": {"checkpoint": {"path": "/mnt/runs/checkpoints"}}},
        {"training.startFrom": {"checkpoint": {"path": "/mnt/runs/other"}}}),
    Row(checkpoint.checkpoints_precede_the_end, Reason.CHECKPOINTS_TOO_RARE,
        "spec.checkpoint.everySteps",
        {"checkpoint.everySteps": 1000}, {"checkpoint.everySteps": 999}, severity=WARNING),
    Row(checkpoint.two_checkpoints_are_kept, Reason.KEEP_LAST_TOO_SMALL,
        "spec.checkpoint.keepLast",
        {"checkpoint.keepLast": 1}, {"checkpoint.keepLast": 2}),
    Row(checkpoint.backups_follow_checkpoints, Reason.BACKUP_NOT_A_MULTIPLE,
        "spec.checkpoint.backup.everySteps",
        {"checkpoint.backup": {"url": "s3://b/x", "everySteps": 150}},
        {"checkpoint.backup": {"url": "s3://b/x", "everySteps": 200}}, severity=WARNING),
    Row(checkpoint.best_is_measured, Reason.BEST_NOT_MEASURED, "spec.checkpoint.bestBy",
        MEASURED | {"validation.everySteps": 0}, MEASURED),
    Row(checkpoint.best_is_measured, Reason.BEST_NOT_MEASURED, "spec.checkpoint.bestBy",
        MEASURED | {"validation.everySteps": 0},
        MEASURED | {"validation.everySteps": 0, "checkpoint.keepBest": False}),
    Row(checkpoint.best_is_measured, Reason.BEST_RARELY_MEASURED, "spec.validation.everySteps",
        MEASURED | {"validation.everySteps": 200}, MEASURED | {"validation.everySteps": 50},
        severity=WARNING),
    Row(checkpoint.validation_has_files, Reason.VALIDATION_NEEDS_FILES,
        "spec.data.validationFiles",
        {"validation": {"afterTraining": True}},
        {"validation": {"afterTraining": True}, "data.validationFiles": ["/mnt/runs/v.jsonl"]}),
    Row(checkpoint.validation_has_files, Reason.VALIDATION_NEEDS_FILES,
        "spec.data.validationFiles",
        {"validation": {"everySteps": 1}}, {"validation": {"everySteps": 0}}),
    Row(checkpoint.validation_has_files, Reason.VALIDATION_NEEDS_FILES,
        "spec.data.validationFiles",
        {"validation": {"beforeTraining": True}}, {"validation": {"maxSamples": 8}}),
    Row(paths.checkpoint_is_on_a_volume, Reason.CHECKPOINT_NOT_ON_VOLUME,
        "spec.checkpoint.path", {"volumes": []}, {}),
    Row(paths.checkpoint_is_on_a_volume, Reason.CHECKPOINT_NOT_ON_VOLUME,
        "spec.checkpoint.path",
        {"checkpoint.path": "/mnt/runsshop/c"}, {"checkpoint.path": "/mnt/runs/c"}),
    Row(paths.checkpoint_is_writable, Reason.CHECKPOINT_READ_ONLY, "spec.checkpoint.path",
        {"volumes": [{"name": "w", "claimName": "w", "mountPath": "/mnt", "readOnly": True}]},
        {"volumes": [{"name": "w", "claimName": "w", "mountPath": "/mnt", "readOnly": True},
                     {"name": "c", "claimName": "c", "mountPath": "/mnt/runs/checkpoints"}]}),
    Row(paths.volume_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.volumes[0]",
        {"volumes": [{"name": "work", "mountPath": "/mnt/runs"}]}, {"volumes": [WORK]}),
    Row(paths.volume_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.volumes[0]",
        {"volumes": [WORK | {"claimTemplate": {"size": "1Gi"}}]},
        {"volumes": [CREATED]}),
    Row(sources.model_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.model",
        {"model": {"attention": "Auto"}}, {"model": {"source": HUB}}),
    Row(sources.model_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.model",
        {"model": {"path": "/mnt/runs/m", "source": HUB}}, {"model": {"path": "/mnt/runs/m"}}),
    Row(sources.data_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.data",
        {"data.trainFiles": []}, {"data.trainFiles": [], "data.sources": [HUB]}),
    Row(sources.data_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.data",
        {"data.sources": [HUB]}, {}),
    Row(sources.validation_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.data",
        {"data.validationFiles": ["/mnt/runs/v.jsonl"], "data.validationSources": [HUB]},
        {"data.validationSources": [HUB]}),
    *(
        Row(sources.staging_folder_is_writable, Reason.STAGING_PATH_UNFIT, "spec.staging.path",
            {"model": {"source": HUB}, "volumes": VOLUMES, "staging.path": path},
            {"model": {"source": HUB}, "volumes": VOLUMES, "staging.path": "/mnt/runs/staged"})
        for path in ("/elsewhere", "/mnt/models/staged")
    ),
    *(
        Row(output.push_keeps_the_source, Reason.PUSH_CHANGES_SOURCE, "spec.output.push",
            {"model": {"source": HUB}, "output.push": target},
            {"model": {"source": HUB}, "output.push": "hf://org/name-trained"})
        for target in ("hf://org/name", "hf://org/name@other", "hf://org/name/trained")
    ),
    Row(paths.other_paths_are_on_volumes, Reason.PATH_NOT_ON_VOLUME, "spec.data.trainFiles[0]",
        {"data.trainFiles": ["/data/train.jsonl"]}, {}, severity=WARNING),
    *(
        Row(paths.index_path_is_writable, Reason.INDEX_PATH_UNFIT,
            "spec.retrieval.endpoints[0].managed.indexPath",
            in_mode("Prompt", {"name": "kb", "managed": DENSE | {"indexPath": path}})
            | {"volumes": VOLUMES},
            in_mode("Prompt", {"name": "kb", "managed": DENSE | {"indexPath": "/mnt/runs/i"}})
            | {"volumes": VOLUMES})
        for path in ("/elsewhere", "/mnt/models/indexes", "/mnt/runs/")
    ),
    Row(paths.other_paths_are_on_volumes, Reason.PATH_NOT_ON_VOLUME,
        "spec.retrieval.endpoints[0].managed.embedding.path",
        in_mode("Prompt", {"name": "kb", "managed": DENSE | {"embedding": {"path": "/e5"}}}),
        in_mode("Prompt", {"name": "kb", "managed": DENSE}), severity=WARNING),
    Row(paths.other_paths_are_on_volumes, Reason.PATH_NOT_ON_VOLUME,
        "spec.retrieval.endpoints[0].managed.corpus",
        in_mode("Prompt", {"name": "kb", "managed": {"corpus": "/kb/corpus.jsonl"}}),
        in_mode("Prompt", MANAGED), severity=WARNING),
    Row(paths.volumes_reach_all_pods, Reason.NEEDS_READ_WRITE_MANY, "spec.volumes",
        {"resources": {"nodes": 2}}, {"resources": {"nodes": 1}}, severity=WARNING),
    Row(names_and_secrets.names_are_unique, Reason.NAME_NOT_UNIQUE, "spec.retrieval.endpoints",
        in_mode("Reward", ACTOR, REFERENCE | {"name": "actor"}),
        in_mode("Reward", ACTOR, REFERENCE)),
    Row(names_and_secrets.env_is_not_reserved, Reason.RESERVED_NAME, "spec.env[0].name",
        {"env": [{"name": "RAY_ADDRESS", "value": "auto"}]},
        {"env": [{"name": "RAGGRPO_FAULT", "value": "kill-rank@step=7"}]}),
    Row(names_and_secrets.mount_path_is_not_reserved, Reason.RESERVED_NAME,
        "spec.volumes[1].mountPath",
        {"volumes": [WORK, {"name": "shm", "claimName": "fast", "mountPath": "/dev/shm/"}]},
        {"volumes": [WORK, {"name": "shm", "claimName": "fast", "mountPath": "/mnt/shm"}]}),
    *(
        Row(names_and_secrets.mount_path_is_not_reserved, Reason.RESERVED_NAME,
            "spec.volumes[1].mountPath",
            {"volumes": [WORK, {"name": "v", "claimName": "v", "mountPath": path}]},
            {"volumes": [WORK, {"name": "v", "claimName": "v", "mountPath": f"/mnt{path}"}]})
        for path in ("/", "/etc/", "/proc/self", "/dev/shm/x", "/home", "/home/ray/.cache", "/opt",
                     "/opt/raggrpo/bin", "/usr/lib/x", "/var/run/secrets", "/run", "/tmp/data")
    ),
    Row(names_and_secrets.mount_path_has_no_colon, Reason.RESERVED_NAME,
        "spec.volumes[1].mountPath",
        {"volumes": [WORK, {"name": "v", "claimName": "v", "mountPath": "/data/a:b"}]},
        {"volumes": [WORK, {"name": "v", "claimName": "v", "mountPath": "/opt2/a"}]}),
    Row(names_and_secrets.mount_paths_are_unique, Reason.NAME_NOT_UNIQUE, "spec.volumes",
        {"volumes": [WORK, {"name": "v", "claimName": "v", "mountPath": "/mnt/runs/"}]},
        {"volumes": [WORK, {"name": "v", "claimName": "v", "mountPath": "/mnt/runs/a/"}]}),
    Row(names_and_secrets.actor_fields_are_unique, Reason.NAME_NOT_UNIQUE,
        "spec.retrieval.actorOutput.fields",
        {"retrieval.actorOutput": {"fields": ["a", "a"]}},
        {"retrieval.actorOutput": {"fields": ["a", "b"]}}),
    Row(names_and_secrets.pull_secrets_are_unique, Reason.NAME_NOT_UNIQUE, "spec.imagePullSecrets",
        {"imagePullSecrets": ["a", "a"]}, {"imagePullSecrets": ["a", "b"]}),
    Row(names_and_secrets.headers_are_not_reserved, Reason.RESERVED_NAME,
        "spec.retrieval.endpoints[0].headers[0].name",
        in_mode("Prompt", KB | {"headers": [{"name": "Content-Length", "value": "5"}]}),
        in_mode("Prompt", KB | {"headers": [{"name": "X-Client", "value": "5"}]})),
    Row(names_and_secrets.secret_variables_are_unique, Reason.NAME_NOT_UNIQUE,
        "spec.retrieval.endpoints[0].headers[1].secretKeyRef",
        in_mode("Prompt", KB | {"headers": [
            {"name": "A", "secretKeyRef": REF}, {"name": "B", "secretKeyRef": {"name": "rag",
            "key": "TOKEN"}}]}),
        in_mode("Prompt", KB | {"headers": [
            {"name": "A", "secretKeyRef": REF}, {"name": "B", "secretKeyRef": REF}]})),
    Row(servers.urls_are_valid, Reason.INVALID_URL, "spec.retrieval.endpoints[0].url",
        in_mode("Prompt", KB | {"url": "http://[::::::::]/"}),
        in_mode("Prompt", KB | {"url": "http://[::1]:8000/"})),
    Row(servers.urls_are_valid, Reason.INVALID_URL, "spec.reward.functions[0].url",
        {"reward": {"functions": [{"name": "Http", "url": "http://j:65536/s"}]}},
        {"reward": {"functions": [{"name": "Http", "url": "http://j:65535/s"}]}}),
    Row(servers.urls_have_one_path, Reason.INVALID_URL, "spec.retrieval.endpoints[0].url",
        in_mode("Prompt", KB | {"url": "http://kb:8000/a/..%3B/b"}),
        in_mode("Prompt", KB | {"url": "http://kb:8000/a/..b?c=/../d"})),
    Row(servers.urls_have_one_path, Reason.INVALID_URL, "spec.reward.functions[0].url",
        {"reward": {"functions": [{"name": "Http", "url": "http://j:1/a/%2e%2E/s"}]}},
        {"reward": {"functions": [{"name": "Http", "url": "http://j:1/a.b/s"}]}}),
    Row(servers.urls_have_one_path, Reason.INVALID_URL, "spec.egress[0]",
        {"egress": ["http://p:1/./"]}, {"egress": ["http://p:1/"]}),
    Row(servers.servers_of_variables_are_listed, Reason.SERVER_NOT_LISTED, "spec.env[0].value",
        {"env": [{"name": "AWS_ENDPOINT_URL", "value": "http://s3:9000"}]},
        {"env": [{"name": "AWS_ENDPOINT_URL", "value": "http://s3:9000"}],
         "egress": ["http://s3:9000/"]}, severity=WARNING),
    Row(servers.servers_of_variables_are_listed, Reason.SERVER_NOT_LISTED, "spec.env[0].value",
        {"env": [{"name": "https_proxy", "value": "proxy:3128"}]},
        {"env": [{"name": "no_proxy", "value": "kb"}]}, severity=WARNING),
    Row(servers.servers_of_variables_are_listed, Reason.SERVER_NOT_LISTED, "spec.env[0].value",
        {"env": [{"name": "ANY", "value": "http://[2001:db8::7]/"}]},
        {"env": [{"name": "ANY", "value": "http://[::1]:4317/"}]}, severity=WARNING),
    Row(servers.urls_have_one_path, Reason.INVALID_URL, "spec.checkpoint.backup.url",
        {"checkpoint.backup": {"url": "file:///mnt/runs/../x"}},
        {"checkpoint.backup": {"url": "file:///mnt/runs/..x"}}),
    Row(servers.urls_are_valid, Reason.INVALID_URL, "spec.checkpoint.backup.url",
        {"checkpoint.backup": {"url": "s3://b/x::file:///etc"}},
        {"checkpoint.backup": {"url": "s3://b/x:y"}}),
    Row(cluster.image_is_a_name, Reason.IMAGE_NOT_A_NAME, "spec.image",
        {"image": "0" * 64}, {"image": "0" * 63}),
    Row(cluster.gpu_resource_is_extended, Reason.NOT_AN_EXTENDED_RESOURCE,
        "spec.resources.gpuResourceName",
        {"resources": {"gpuResourceName": "x.kubernetes.io/gpu"}},
        {"resources": {"gpuResourceName": "amd.com/gpu"}}),
    Row(cluster.priority_class_is_not_reserved, Reason.RESERVED_NAME,
        "spec.scheduling.priorityClassName",
        {"scheduling.priorityClassName": "system-node-critical"},
        {"scheduling.priorityClassName": "systems"}),
    Row(cluster.toleration_equal_has_key, Reason.TOLERATION_FORM,
        "spec.scheduling.tolerations[0].key",
        {"scheduling.tolerations": [{"operator": "Equal", "value": "a"}]},
        {"scheduling.tolerations": [{"operator": "Equal", "value": "a", "key": "k"}]}),
    Row(cluster.toleration_exists_has_no_value, Reason.TOLERATION_FORM,
        "spec.scheduling.tolerations[0].value",
        {"scheduling.tolerations": [{"key": "k", "value": "a"}]},
        {"scheduling.tolerations": [{"key": "k"}]}),
    *(
        Row(rule, Reason.AMOUNT_OUT_OF_RANGE, f"spec.resources.{rule.field}",
            {"resources": {rule.field: wrong}}, {"resources": {rule.field: right}})
        for rule, wrong, right in (
            (limits.cpu_is_in_range, "0", "1m"), (limits.cpu_is_in_range, "4097", "4096"),
            (limits.memory_is_in_range, "63Mi", "64Mi"),
            (limits.memory_is_in_range, "999999999999Ti", "64Ti"),
            (limits.shm_size_is_in_range, "0.001k", "80Mi"))
    ),
    Row(limits.retriever_memory_is_in_range, Reason.AMOUNT_OUT_OF_RANGE,
        "spec.retrieval.endpoints[0].managed.memory",
        in_mode("Prompt", {"name": "kb", "managed": CORPUS | {"memory": "0"}}),
        in_mode("Prompt", {"name": "kb", "managed": CORPUS | {"memory": "1Gi"}})),
    *(
        Row(limits.claim_size_is_in_range, Reason.AMOUNT_OUT_OF_RANGE,
            "spec.volumes[0].claimTemplate.size",
            {"volumes": [CREATED | {"claimTemplate": {"size": size}}]}, {"volumes": [CREATED]})
        for size in ("0", "63Mi", "1025Ti")
    ),
    Row(limits.file_names_are_short, Reason.PATH_TOO_LONG, "spec.checkpoint.path",
        {"checkpoint.path": "/mnt/runs/" + "中" * 86},
        {"checkpoint.path": "/mnt/runs/" + "中" * 85}),
    Row(limits.environment_is_small, Reason.SPEC_TOO_LARGE, "spec.env",
        {"env": [{"name": f"A{i}", "value": "x" * 2048} for i in range(16)]},
        {"env": [{"name": f"A{i}", "value": "x" * 2040} for i in range(16)]}),
    Row(limits.texts_are_small, Reason.SPEC_TOO_LARGE, "spec",
        in_mode("Prompt", KB | {"extraBody": {"a": {f"{i:0>256}": 1 for i in range(300)}}}),
        in_mode("Prompt", KB | {"extraBody": {"a": {f"{i:0>256}": 1 for i in range(200)}}})),
    Row(limits.configuration_fits, Reason.SPEC_TOO_LARGE, "spec",
        in_mode("Prompt", KB, promptTemplate="{passages}{prompt}" + "中" * 10_000),
        in_mode("Prompt", KB, promptTemplate="{passages}{prompt}" + "x" * 16000)),
    Row(names_and_secrets.variable_has_one_source, Reason.ONE_SOURCE_OF_VALUE, "spec.env[0]",
        {"env": [{"name": "HOME", "value": "/x", "secretKeyRef": REF}]},
        {"env": [{"name": "HOME", "value": "/x"}]}),
    *(
        Row(names_and_secrets.ca_bundle_has_one_source, Reason.ONE_SOURCE_OF_VALUE,
            "spec.caBundle", {"caBundle": sources}, {"caBundle": {"secret": "a"}})
        for sources in ({}, {"secret": "a", "configMap": "b"})
    ),
    Row(names_and_secrets.header_has_one_source, Reason.ONE_SOURCE_OF_VALUE,
        "spec.retrieval.endpoints[0].headers[0]",
        in_mode("Prompt", KB | {"headers": [{"name": "X-Client"}]}),
        in_mode("Prompt", KB | {"headers": [{"name": "X-Client", "value": "raggrpo"}]})),
    Row(names_and_secrets.secret_names_have_no_value, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.env[0].value",
        {"env": [{"name": "WANDB_API_KEY", "value": "abc"}]},
        {"env": [{"name": "WANDB_API_KEY", "secretKeyRef": REF}]}),
    Row(names_and_secrets.secret_names_have_no_value, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].headers[0].value",
        in_mode("Prompt", KB | {"headers": [{"name": "Authorization", "value": "Bearer x"}]}),
        in_mode("Prompt", KB | {"headers": [{"name": "Authorization", "secretKeyRef": REF}]})),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].extraBody.api_key",
        in_mode("Prompt", KB | {"extraBody": {"api_key": "abc"}}),
        in_mode("Prompt", KB | {"extraBody": {"tenant_id": "acme"}})),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].extraBody.auth[0].api_key",
        in_mode("Prompt", KB | {"extraBody": {"auth": [{"api_key": 12345}]}}),
        in_mode("Prompt", KB | {"extraBody": {"tenant": [{"id": 12345}]}})),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].body.who",
        in_mode("Prompt", SEARCH | {"body": {"q": "{question}", "who": "hf_" + "a" * 34}}),
        in_mode("Prompt", SEARCH)),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.rollout.agent.request.options.api_key",
        with_agent(AGENT, request={"q": "{question}", "options": {"api_key": "abc"}}),
        with_agent(AGENT, request={"q": "{question}", "options": {"tenant": "acme"}})),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.rollout.agent.request.who",
        with_agent(AGENT, request={"q": "{question}", "who": "hf_" + "a" * 34}),
        with_agent(AGENT, request={"q": "{question}", "who": "hf_" + "a" * 34}, notSecret=True)),
    Row(names_and_secrets.secret_names_have_no_value, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.reward.functions[0].judge.headers[0].value",
        make_judge(headers=[{"name": "Authorization", "value": "Bearer x"}]),
        make_judge(headers=[{"name": "Authorization", "secretKeyRef": REF}])),
    Row(names_and_secrets.urls_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].url",
        in_mode("Prompt", KB | {"url": "http://kb:8000/r?token=abc"}),
        in_mode("Prompt", KB | {"url": "http://kb:8000/r?max_tokens=9"})),
    Row(names_and_secrets.urls_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.reward.functions[0].url",
        {"reward": {"functions": [{"name": "Http", "url": "http://j:1/s?key=abc"}]}},
        {"reward": {"functions": [{"name": "Http", "url": "http://j:1/s"}]}}),
    *(
        Row(names_and_secrets.secret_names_have_no_value, Reason.SECRET_IN_PLAIN_TEXT,
            "spec.env[0].value", {"env": [{"name": name, "value": "x"}]},
            {"env": [{"name": "PLAIN", "value": "x"}]})
        for name in ("DB_PASS", "PASSPHRASE", "SENTRY_DSN", "SLACK_WEBHOOK", "DATABASE_URL",
                     "BEARER", "OPENAIKEY", "KUBECONFIG_DATA", "SESSION_ID")
    ),
    *(
        Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
            f"spec.retrieval.endpoints[0].extraBody.{name}",
            in_mode("Prompt", KB | {"extraBody": {name: "x"}}),
            in_mode("Prompt", KB | {"extraBody": {name: "x"}, "notSecret": True}))
        for name in ("DATABASE_URL", "BEARER", "OPENAIKEY", "KUBECONFIG_DATA", "SESSION_ID")
    ),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.env[0].value", {"env": [{"name": "ANY", "value": RANDOM_KEY}]},
        {"env": [{"name": "ANY", "value": RANDOM_KEY, "notSecret": True}]}),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].headers[0].value",
        in_mode("Prompt", KB | {"headers": [{"name": "X-Client", "value": RANDOM_KEY}]}),
        in_mode("Prompt", KB | {"headers": [
            {"name": "X-Client", "value": RANDOM_KEY, "notSecret": True}]})),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.reward.functions[0].url",
        {"reward": {"functions": [{"name": "Http", "url": "https://h/hooks/SECRET"}]}},
        {"reward": {"functions": [
            {"name": "Http", "url": "https://h/hooks/SECRET", "notSecret": True}]}}),
    *(
        Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT, field,
            with_agent(values, **changes), with_agent(values, **changes, notSecret=True))
        for field, values, changes in (
            ("spec.rollout.agent.url", SERVICE, {"url": "https://h/hooks/SECRET"}),
            ("spec.rollout.agent.forward[1].url", AGENT,
             {"forward": [*forward(["a"]), *forward(["b"], url=f"http://j/{RANDOM_KEY}/v1")]}),
        )
    ),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.reward.functions[0].judge.extraBody.session_id",
        make_judge(extraBody={"session_id": "x"}), make_judge(extraBody={"user": "x"})),
    Row(names_and_secrets.secret_names_have_no_value, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.env[0].value", {"env": [{"name": "SESSION_ID", "value": "x"}]},
        {"env": [{"name": "SESSION_ID", "value": "x", "notSecret": True}]}),
    Row(names_and_secrets.urls_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].url",
        in_mode("Prompt", KB | {"url": "http://kb/r?token=abc"}),
        in_mode("Prompt", KB | {"url": "http://kb/r?token=abc", "notSecret": True})),
    *(
        Row(names_and_secrets.values_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
            "spec.env[0].value", {"env": [{"name": "ANY", "value": value}]},
            {"env": [{"name": "ANY", "value": "plain"}]})
        for value in (
            "postgres://me:word@db/x", "https://ghp@git.example.com/x",
            "https://x.example.com/b?sv=1&sig=abc", "hf_" + "a" * 34,
            "-----BEGIN RSA PRIVATE KEY-----", "https://hooks.slack.com/services/T/B")
    ),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.egress[0]",
        {"egress": ["https://hooks.slack.com/services/T/B/x"]}, {"egress": ["https://s3:9000/"]}),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.checkpoint.backup.url",
        {"checkpoint.backup": {"url": "s3://b/hf_" + "a" * 34}},
        {"checkpoint.backup": {"url": "s3://b/x"}}),
    *(
        Row(names_and_secrets.urls_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
            "spec.retrieval.endpoints[0].url", in_mode("Prompt", KB | {"url": url}),
            in_mode("Prompt", KB | {"url": "http://kb:8000/r?tenant=acme"}))
        for url in ("http://kb/r?sig=a", "http://kb/r?a=1&X-Amz-Signature=a",
        "http://kb/r?%74oken=a",
                    "https://hooks.slack.com/services/T/B/x", "http://kb/r?x#access_token=a")
    ),
    Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.retrieval.endpoints[0].extraBody.tenant",
        in_mode("Prompt", KB | {"extraBody": {"tenant": "hf_" + "a" * 34}}),
        in_mode("Prompt", KB | {"extraBody": {"tenant": "acme"}})),
    Row(numerics.temperature_is_positive, Reason.TEMPERATURE_ZERO, "spec.rollout.temperature",
        {"rollout": {"temperature": 0.0}}, {"rollout": {"temperature": 0.01}}),
    *(
        Row(numerics.temperature_is_in_range_of_engine, Reason.TEMPERATURE_OUT_OF_RANGE,
            "spec.rollout.temperature",
            {"rollout": {"temperature": rejected}}, {"rollout": {"temperature": accepted}})
        for rejected, accepted in ((2.01, 2.0), (5.0, 2.0), (100.0, 2.0), (0.009, 0.01))
    ),
    Row(numerics.top_p_keeps_logprobs_exact, Reason.TOP_P_BELOW_ONE, "spec.rollout.topP",
        {"rollout": {"topP": 0.9}}, {"rollout": {"topP": 1.0}}, severity=WARNING),
    Row(numerics.learning_rate_is_usual, Reason.LEARNING_RATE_UNUSUAL,
        "spec.training.learningRate",
        with_steps(learningRate=1.1e-3), with_steps(learningRate=1e-3), severity=WARNING),
    Row(numerics.learning_rate_is_usual, Reason.LEARNING_RATE_UNUSUAL,
        "spec.training.learningRate",
        with_steps(learningRate=9e-9), with_steps(learningRate=1e-8), severity=WARNING),
    Row(numerics.dual_clip_exceeds_clip_range, Reason.CLIP_RANGE, "spec.algorithm.dualClip",
        {"algorithm": {"dualClip": 1.0}}, {"algorithm": {"dualClip": 3.0}}),
    Row(numerics.dual_clip_exceeds_clip_range, Reason.CLIP_RANGE, "spec.algorithm.dualClip",
        {"algorithm": {"dualClip": 1.28}}, {"algorithm": {"dualClip": 1.29}}),
    Row(numerics.warmup_ends_within_run, Reason.WARMUP_EXCEEDS_RUN, "spec.training.warmupSteps",
        {"training": {"totalSteps": 5, "warmupSteps": 5}},
        {"training": {"epochs": 1, "warmupSteps": 5}}, severity=WARNING),  # steps are not known yet
    *(
        Row(numerics.bf16_is_available, Reason.BF16_UNAVAILABLE, "spec.training.precision", {},
            {"resources": {"device": "CPU"}}, Facts(gpu_compute_major=major))
        for major in (1, 7)
    ),
    Row(numerics.clip_range_is_ordered, Reason.CLIP_RANGE, "spec.algorithm.clipRatioHigh",
        {"algorithm": {"clipRatioLow": 0.3}}, {"algorithm": {"clipRatioLow": 0.28}}),
    Row(numerics.clip_ratio_high_is_positive, Reason.CLIP_RANGE, "spec.algorithm.clipRatioHigh",
        {"algorithm": {"clipRatioLow": 0.0, "clipRatioHigh": 0.0}},
        {"algorithm": {"clipRatioLow": 0.0, "clipRatioHigh": 0.1}}),
    Row(numerics.warmup_ends_within_run, Reason.WARMUP_EXCEEDS_RUN, "spec.training.warmupSteps",
        with_steps(warmupSteps=1000), with_steps(warmupSteps=999), severity=WARNING),
    Row(numerics.warmup_ends_within_run, Reason.WARMUP_EXCEEDS_RUN, "spec.training.warmupSteps",
        with_steps(warmupSteps=50, learningRateSchedule="Cosine", decaySteps=50),
        with_steps(warmupSteps=50, learningRateSchedule="Cosine", decaySteps=51),
        severity=WARNING),
    Row(numerics.decay_is_used, Reason.DECAY_UNUSED, "spec.training.decaySteps",
        with_steps(decaySteps=50), with_steps(decaySteps=50, learningRateSchedule="Linear"),
        severity=WARNING),
    Row(numerics.decay_is_used, Reason.DECAY_UNUSED, "spec.training.minLearningRateRatio",
        with_steps(minLearningRateRatio=0.1),
        with_steps(minLearningRateRatio=0.1, learningRateSchedule="Cosine"), severity=WARNING),
    Row(numerics.attention_supports_row_layout, Reason.ATTENTION_UNAVAILABLE,
        "spec.model.attention",
        {"model.attention": "Flash"},
        {"model.attention": "Flash"} | with_steps(rowLayout="Padded")),
    Row(numerics.attention_supports_row_layout, Reason.ATTENTION_UNAVAILABLE,
        "spec.model.attention",
        {"model.attention": "Eager"},
        {"model.attention": "Eager", "resources": {"device": "CPU"}}
        | with_steps(rowLayout="Padded")),
    Row(numerics.flash_has_16_bits, Reason.ATTENTION_UNAVAILABLE, "spec.model.attention",
        {"model.attention": "Flash"} | with_steps(rowLayout="Padded", precision="FP32"),
        {"model.attention": "Sdpa"}),
    Row(numerics.flash_has_gpu, Reason.ATTENTION_UNAVAILABLE, "spec.model.attention",
        {"model.attention": "Flash", "resources": {"device": "CPU"}}, {"model.attention": "Flash"}),
    Row(numerics.row_layout_is_exact, Reason.ROW_LAYOUT_NOT_EXACT, "spec.training.rowLayout",
        with_steps(rowLayout="SharedPrefix"), with_steps(),
        facts=Facts(row_layout=RowLayout.PADDED)),
    Row(monitoring.debug_lines_are_written, Reason.DEBUG_LINES_HIDDEN,
        "spec.monitoring.debug.modelOutput",
        {"monitoring": {"logLevel": "Warning", "debug": {"modelOutput": True}}},
        {"monitoring": {"logLevel": "Debug", "debug": {"modelOutput": True}}}, severity=WARNING),
    Row(monitoring.debug_lines_are_written, Reason.DEBUG_LINES_HIDDEN,
        "spec.monitoring.debug.scoring",
        {"monitoring": {"logLevel": "Warning", "debug": {"scoring": True}}},
        {"monitoring": {"logLevel": "Info", "debug": {"scoring": True}}}, severity=WARNING),
    Row(monitoring.wandb_has_a_key, Reason.WANDB_WITHOUT_KEY, "spec.monitoring.wandb.project",
        {"monitoring.wandb.project": "sales"},
        {"monitoring.wandb.project": "sales",
         "env": [{"name": "WANDB_API_KEY", "secretKeyRef": {"name": "wandb", "key": "key"}}]},
        severity=WARNING),
    Row(monitoring.wandb_has_a_key, Reason.WANDB_WITHOUT_KEY, "spec.monitoring.wandb.project",
        {"monitoring.wandb.project": "sales", "env": [{"name": "OTHER", "value": "1"}]},
        {"monitoring.wandb.project": "sales", "env": [{"name": "WANDB_MODE", "value": "offline"}]},
        severity=WARNING),
    Row(monitoring.wandb_is_used, Reason.WANDB_UNUSED, "spec.monitoring.wandb.project",
        {"monitoring": {"mode": "Off", "wandb": {"project": "sales"}}},
        {"monitoring": {"mode": "Off"}}, severity=WARNING),
    *(
        Row(numerics.learning_rate_is_usual, Reason.LEARNING_RATE_UNUSUAL,
            "spec.training.learningRate", with_lora(learningRate=rejected),
            with_lora(learningRate=accepted), severity=WARNING)
        for rejected, accepted in ((1e-6, 2e-6), (3e-3, 1e-3))
    ),
    Row(lora.lora_has_targets, Reason.LORA_TARGETS, "spec.training.lora.targets",
        with_targets(), with_lora()),
    Row(lora.all_linear_is_the_only_target, Reason.LORA_TARGETS, "spec.training.lora.targets",
        with_targets("AllLinear", "q_proj"), with_targets("AllLinear")),
    Row(lora.lora_targets_are_unique, Reason.NAME_NOT_UNIQUE, "spec.training.lora.targets",
        with_targets("q_proj", "v_proj", "q_proj"), with_targets("q_proj", "v_proj")),
    *(
        Row(lora.lora_targets_are_inner_layers, Reason.LORA_TARGETS,
            "spec.training.lora.targets", with_targets("q_proj", rejected), with_targets(accepted))
        for rejected, accepted in (
            ("lm_head", "head_proj"), ("model.embed_tokens", "embed_tokens_proj"),
            ("wte", "wte.proj"), ("embed_out", "embed_out_"),
        )
    ),
    Row(lora.rank_reduces_parameters, Reason.LORA_RANK_TOO_LARGE, "spec.training.lora.rank",
        {"training.lora": {"rank": 128}}, {"training.lora": {"rank": 127}}, KNOWN_TINY,
        severity=WARNING),
    Row(agent.agent_has_no_retrieval_mode, Reason.AGENT_MODE, "spec.retrieval.mode",
        in_mode("Search", KB) | with_agent(AGENT), with_agent(AGENT)),
    *(
        Row(agent.python_agent_has_function, Reason.AGENT_INCOMPLETE, "spec.rollout.agent.python",
            with_agent(rejected), with_agent(accepted))
        for rejected, accepted in (({}, AGENT), (SERVICE | AGENT, SERVICE))
    ),
    Row(agent.only_python_agent_has_interpreter, Reason.AGENT_INCOMPLETE,
        "spec.rollout.agent.interpreter", with_agent(SERVICE | {"interpreter": "/venv/bin/python"}),
        with_agent(AGENT | {"interpreter": "/venv/bin/python"})),
    *(
        Row(agent.http_agent_has_url, Reason.AGENT_INCOMPLETE, "spec.rollout.agent.url",
            with_agent(rejected), with_agent(accepted))
        for rejected, accepted in (
            (SERVICE | {"url": ""}, SERVICE), (AGENT | {"url": "http://app"}, AGENT),
        )
    ),
    *(
        Row(agent.identification_fits_type, Reason.AGENT_IDENTIFICATION,
            "spec.rollout.agent.identify", with_agent(rejected), with_agent(accepted))
        for rejected, accepted in (
            (SERVICE | {"identify": "Slot"}, SERVICE),
            (AGENT | {"identify": "Trace"}, AGENT | {"identify": "Slot"}),
        )
    ),
    *(
        Row(agent.container_agent_has_image, Reason.AGENT_INCOMPLETE,
            "spec.rollout.agent.container", with_agent(rejected), with_agent(accepted))
        for rejected, accepted in (
            (CONTAINER, CONTAINER | {"container": {"image": "app:1"}}),
            (AGENT | {"container": {"image": "app:1"}}, AGENT),
        )
    ),
    Row(agent.container_agent_has_command, Reason.AGENT_INCOMPLETE,
        "spec.rollout.agent.container.command", in_container(), in_container(command=["serve"]),
        in_pods=False),
    Row(agent.http_agent_reaches_gateway, Reason.AGENT_INCOMPLETE, "spec.rollout.agent.allowFrom",
        with_agent(LOCAL_SERVICE), with_agent(SERVICE)),
    Row(agent.only_http_agents_admit_pods, Reason.AGENT_INCOMPLETE, "spec.rollout.agent.allowFrom",
        with_agent(AGENT, allowFrom=SERVICE["allowFrom"]), with_agent(AGENT)),
    *(
        Row(agent.processes_are_used, Reason.AGENT_INCOMPLETE, "spec.rollout.agent.processMemory",
            with_agent(SERVICE, **values), with_agent(AGENT, **values))
        for values in ({"processes": 1}, {"processMemory": "64Mi"})
    ),
    *(
        Row(agent.gateway_variables_are_not_set, Reason.RESERVED_NAME,
            "spec.rollout.agent.container.env[0].name", with_agent_env(name=name),
            with_agent_env(name=f"{name}_2"))
        for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")
    ),
    Row(names_and_secrets.env_is_not_reserved, Reason.RESERVED_NAME,
        "spec.rollout.agent.container.env[0].name", with_agent_env(name="RAY_ADDRESS"),
        with_agent_env(name="APP_ADDRESS")),
    Row(names_and_secrets.variable_has_one_source, Reason.ONE_SOURCE_OF_VALUE,
        "spec.rollout.agent.container.env[0]",
        with_agent_env(value="x", secretKeyRef={"name": "s", "key": "k"}),
        with_agent_env(secretKeyRef={"name": "s", "key": "k"})),
    Row(names_and_secrets.secret_names_have_no_value, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.rollout.agent.container.env[0].value", with_agent_env(name="API_KEY", value="x"),
        with_agent_env(name="API_KEY", value="x", notSecret=True)),
    Row(names_and_secrets.values_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
        "spec.rollout.agent.container.env[0].value", with_agent_env(value="hf_" + "a" * 20),
        with_agent_env(value="hf_")),
    Row(names_and_secrets.names_are_unique, Reason.NAME_NOT_UNIQUE,
        "spec.rollout.agent.container.env", in_container(env=[{"name": "A"}, {"name": "A"}]),
        in_container(env=[{"name": "A"}, {"name": "B"}])),
    *(
        Row(names_and_secrets.other_strings_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT,
            f"spec.rollout.agent.container.{field}[0]", in_container(**{field: [secret]}),
            in_container(**{field: [literal]}))
        for field, secret, literal in (
            ("command", "hf_" + "a" * 20, "serve"), ("args", "hf_" + "a" * 20, "--port=8000"),
            ("egress", "http://a/?token=abc", "http://a/"),
        )
    ),
    Row(limits.environment_is_small, Reason.SPEC_TOO_LARGE, "spec.rollout.agent.container.env",
        in_container(env=[{"name": f"A{i}", "value": "中" * 2048} for i in range(6)]),
        in_container(env=[{"name": f"A{i}", "value": "中" * 2048} for i in range(5)])),
    *(
        Row(rule, Reason.AMOUNT_OUT_OF_RANGE, f"spec.rollout.agent.{field}", rejected, accepted)
        for rule, field, rejected, accepted in (
            (limits.agent_cpu_is_in_range, "container.cpu", in_container(cpu="0"),
             in_container(cpu="1m")),
            (limits.agent_memory_is_in_range, "container.memory", in_container(memory="63Mi"),
             in_container(memory="64Mi")),
            (limits.process_memory_is_in_range, "processMemory",
             with_agent(AGENT, processMemory="63Mi"), with_agent(AGENT, processMemory="64Mi")),
        )
    ),
    Row(cluster.image_is_a_name, Reason.IMAGE_NOT_A_NAME, "spec.rollout.agent.container.image",
        in_container(image="0" * 64), in_container(image="0" * 63)),
    Row(servers.urls_have_one_path, Reason.INVALID_URL, "spec.rollout.agent.container.egress[0]",
        in_container(egress=["http://a/.."]), in_container(egress=["http://a/..b"])),
    Row(servers.servers_of_variables_are_listed, Reason.SERVER_NOT_LISTED,
        "spec.rollout.agent.container.env[0].value",
        with_agent_env(value="http://db:1/") | {"egress": ["http://db:1"]},
        in_container(env=[{"name": "A", "value": "http://db:1/"}], egress=["http://db:1"]),
        severity=WARNING),
    *(
        Row(agent.model_names_are_unique, Reason.NAME_NOT_UNIQUE, "spec.rollout.agent.forward",
            with_agent(AGENT, **rejected), with_agent(AGENT, **accepted))
        for rejected, accepted in (
            ({"forward": forward(["*"])}, {"forward": forward(["*"]), "policyModels": ["p"]}),
            ({"forward": forward(["a", "b", "a"])}, {"forward": forward(["a", "b", "a*"])}),
            ({"forward": forward(["a"], ["b", "a"])}, {"forward": forward(["a"], ["b"])}),
            ({"forward": forward(["a"]), "policyModels": ["a"]},
             {"forward": forward(["a"]), "policyModels": ["a*"]}),
        )
    ),
    *(
        Row(agent.forward_url_is_a_base_url, Reason.INVALID_URL,
            "spec.rollout.agent.forward[0].url",
            with_agent(AGENT, forward=forward(["a"], url=rejected)),
            with_agent(AGENT, forward=forward(["a"], url=accepted)))
        for rejected, accepted in (
            ("http://j/v1/chat/completions", "http://j/v1/chat"),
            ("http://j/v1/completions/", "http://j/completions/v1"),
            ("http://j/v1/embeddings", "http://j/v1/"),
            ("http://j/v1?api-version=1", "http://j"),
        )
    ),
    *(
        Row(agent.agent_urls_contain_no_secret, Reason.SECRET_IN_PLAIN_TEXT, field,
            with_agent(**rejected), with_agent(**accepted))
        for field, rejected, accepted in (
            ("spec.rollout.agent.url",
             {"values": SERVICE, "url": "http://app/?api_key=abcdefgh12345678"},
             {"values": SERVICE, "url": "http://app/?tenant=acme"}),
            ("spec.rollout.agent.forward[0].url",
             {"values": AGENT, "forward": forward(["a"], url="http://j/v1;access_token=abcdefgh")},
             {"values": AGENT, "forward": forward(["a"], url="http://j/v1")}),
        )
    ),
    Row(names_and_secrets.secret_variables_are_unique, Reason.NAME_NOT_UNIQUE,
        "spec.rollout.agent.forward[1].apiKeySecret",
        with_agent(AGENT, forward=forward(["a"], ["b"], secrets=["j-1", "j.1"])),
        with_agent(AGENT, forward=forward(["a"], ["b"], secrets=["j-1", "j-1"]))),
    *(
        Row(agent.request_depends_on_sample, Reason.AGENT_INCOMPLETE,
            "spec.rollout.agent.request", with_agent(AGENT | {"request": request}),
            with_agent(AGENT | {"request": {"q": "{category}"}}), severity=WARNING)
        for request in ({}, {"q": "{question"}, ["{{question}}"])
    ),
    *(
        Row(agent.request_identifies_calls, Reason.AGENT_IDENTIFICATION,
            "spec.rollout.agent.request", with_agent(rejected), with_agent(accepted))
        for rejected, accepted in (
            (SERVICE | {"identify": "Request"},
             SERVICE | {"identify": "Request", "request": {"key": "{apiKey}"}}),
            (SERVICE | {"request": ["{baseUrl}"]}, SERVICE | {"request": ["{{baseUrl}}"]}),
            (AGENT | {"request": "{apiKey}"}, AGENT | {"request": "{question}"}),
        )
    ),
    Row(numerics.backoff_is_ordered, Reason.BACKOFF_RANGE, "spec.recovery.maxBackoffSeconds",
        {"recovery": {"backoffSeconds": 400}}, {"recovery": {"backoffSeconds": 360}}),
)  # fmt: skip


def make_input(changes: dict[str, Any], row: Row, status: JobStatus) -> RuleInput:
    job = make_job(changes)
    job = job.model_copy(update={"status": status})
    resolved = resolve(job, row.facts)
    sizing = size(resolved.spec, row.facts)
    return RuleInput(job, resolved.spec, resolved.origins, row.facts, sizing, row.in_pods)


def row_name(row: Row) -> str:
    name = row.rule.name if isinstance(row.rule, SpecRule) else row.rule.__name__
    return f"{name}-{row.reason}"


@pytest.mark.row(
    "A3",
    "A8",
    "A18",
    "A32",
    "C1",
    "C2",
    "C3",
    "C4",
    "C5",
    "C6",
    "C7",
    "C8",
    "C9",
    "C10",
    "C11",
    "C12",
    "C14",
    "C16",
    "C17",
    "C18",
    "C19",
    "C20",
    "E10",
    "E11",
    "E12",
)
@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_rule_reports_field_reason_and_remedy(row: Row) -> None:
    reported = list(row.rule(make_input(row.fails, row, row.status)))
    assert [(v.path, v.reason, v.severity) for v in reported] == [
        (row.path, row.reason, row.severity)
    ]
    assert reported[0].message
    assert reported[0].remedy
    assert "\n" not in reported[0].line()


@pytest.mark.row("C19")
@pytest.mark.parametrize("row", [row for row in ROWS if row.severity is WARNING], ids=row_name)
def test_warning_is_written_to_status_with_remedy(row: Row) -> None:
    [violation] = row.rule(make_input(row.fails, row, row.status))
    this = Round(make_job(), Observed(), T0, JobStatus(), resolve(make_job(), None))
    update_warnings(this, [violation])

    [warning] = this.status.warnings
    assert (warning.path, warning.message) == (
        violation.path,
        f"{violation.message} → {violation.remedy}",
    )


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_rule_accepts_similar_valid_job(row: Row) -> None:
    assert list(row.rule(make_input(row.passes, row, JobStatus()))) == []


def remedy_of(row: Row) -> re.Match[str] | None:
    (reported,) = row.rule(make_input(row.fails, row, row.status))
    return re.search(r"([a-z]\w*(?:\.\w+)+): ([\w.-]+)", reported.remedy)


FIXABLE = [row for row in ROWS if remedy_of(row)]


@pytest.mark.parametrize("row", FIXABLE, ids=row_name)
def test_remedy_fixes_violation(row: Row) -> None:
    remedy = remedy_of(row)
    assert remedy
    value = yaml.safe_load(remedy[2])
    fixed = row.fails | {remedy[1]: value}

    reported = list(row.rule(make_input(fixed, row, row.status)))
    assert row.reason not in {violation.reason for violation in reported}


def test_remedies_of_at_least_forty_cases_are_applied_in_tests() -> None:
    assert len(FIXABLE) >= 40


def test_remedies_suggest_nearest_valid_value() -> None:
    suggested = {
        Reason.CHECKPOINTS_TOO_RARE: "checkpoint.everySteps: 100;",  # a tenth of 1000
        Reason.BACKUP_NOT_A_MULTIPLE: "checkpoint.backup.everySteps: 100",  # below 150
        Reason.ACTIVATIONS_MAY_NOT_FIT: "tokensPerMicroBatch: 4173,",
    }

    for row in ROWS:
        if row.reason in suggested:
            (reported,) = row.rule(make_input(row.fails, row, row.status))
            assert suggested[row.reason] in reported.remedy


def remedies(changes: dict[str, Any], facts: Facts = NO_FACTS) -> dict[Reason, str]:
    job = make_job(changes)
    return {each.reason: each.remedy for each in violations(job, resolve(job, facts), facts)}


@pytest.mark.parametrize(
    ("changes", "facts", "reason", "remedy"),
    [
        ({"resources": GPUS8, "rollout": {"tensorParallelSize": 8}}, KNOWN_7B,
         Reason.HEADS_NOT_DIVISIBLE, "rollout.tensorParallelSize: 7,"),  # of 28 heads
        ({"resources": {"shmSize": "0.001k"}}, NO_FACTS,
         Reason.AMOUNT_OUT_OF_RANGE, "shmSize: 80Mi or more"),
        (in_mode("Prompt", KB, maxPassageTokens=342) | {"data.allowTruncation": True},
         NO_FACTS, Reason.PASSAGES_DO_NOT_FIT,
         "data.maxPromptLength: 1368 or more"),  # 3 × 342 / 0.75
    ],
)  # fmt: skip
def test_remedy_text_suggests_valid_value(
    changes: dict[str, Any], facts: Facts, reason: Reason, remedy: str
) -> None:
    assert remedy in remedies(changes, facts)[reason]


HEADER = {"name": "X-Client", "value": "a"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (in_mode("Prompt", KB | MANAGED), "exactly one of url and managed is required (kb)"),
        (in_mode("Prompt", {"name": "kb"}), "exactly one of url and managed is required (kb)"),
        (
            in_mode("Prompt", KB | {"headers": [HEADER | {"secretKeyRef": REF}]}),
            "exactly one of value and secretKeyRef is required (X-Client)",
        ),
        (
            in_mode("Prompt", KB | {"headers": [{"name": "X-Client"}]}),
            "exactly one of value and secretKeyRef is required (X-Client)",
        ),
        (
            {"checkpoint.path": "/else"},
            "the path is not on a volume: checkpoints would be lost with the pod (/else, volumes: "
            "/mnt/runs)",
        ),
        (
            {"data.trainBatchSize": 128} | with_steps(miniBatchPrompts=48),
            "miniBatchPrompts does not divide data.trainBatchSize (48, 128)",
        ),
        (
            in_mode("Search", KB, maxPassageTokens=86),
            "maxTurns × topK × retrieval.maxPassageTokens leaves no room for the answer (516 of "
            "512 tokens)",
        ),
    ],
)
def test_violation_message_contains_resolved_values(changes: dict[str, Any], message: str) -> None:
    job = make_job(changes)
    [violation] = violations(job, resolve(job))
    assert violation.message == message


@pytest.mark.parametrize(
    ("volumes", "shown"),
    [(4, "/mnt/0, /mnt/1, /mnt/2, /mnt/3)"), (5, "/mnt/0, /mnt/1, /mnt/2, /mnt/3 and others)")],
)
def test_violation_message_lists_up_to_four_volumes(volumes: int, shown: str) -> None:
    names = map(str, range(volumes))
    mounts = [{"name": f"v{n}", "claimName": n, "mountPath": f"/mnt/{n}"} for n in names]
    job = make_job({"volumes": mounts})
    [reported] = errors(violations(job, resolve(job)))
    assert reported.message.endswith(f"(/mnt/runs/checkpoints, volumes: {shown}")


def test_index_path_outside_volumes_is_reported_once() -> None:
    dense = DENSE | {"indexPath": "/elsewhere"}
    job = make_job(in_mode("Prompt", {"name": "kb", "managed": dense}))
    assert {each.reason for each in violations(job, resolve(job))} == {Reason.INDEX_PATH_UNFIT}


@pytest.mark.parametrize(
    ("facts", "name"),
    [(Facts(gpu_compute_major=7), "the GPU"), (Facts(gpu_compute_major=7, gpu_product="V9"), "V9")],
)
def test_bf16_violation_names_gpu_if_known(facts: Facts, name: str) -> None:
    job = make_job()
    [reported] = violations(job, resolve(job, facts), facts)
    assert reported.message == f"{name} has compute capability 7.x, but BF16 requires 8.0"


@pytest.mark.parametrize("major", [0, 8])
def test_bf16_is_accepted_for_supported_or_unknown_gpu(major: int) -> None:
    job, facts = make_job(), Facts(gpu_compute_major=major)
    assert violations(job, resolve(job, facts), facts) == ()


@pytest.mark.parametrize(
    ("share", "placement", "reasons"),
    [
        (0.3, {}, set()),
        (0.29, {}, {Reason.UTILIZATION_TOO_LOW}),
        (0.7, {}, set()),
        (0.71, {}, {Reason.UTILIZATION_TOO_HIGH}),
        (0.9, SPLIT, set()),
        (0.91, SPLIT, {Reason.UTILIZATION_TOO_HIGH}),
    ],
)
def test_gpu_memory_utilization_limits_depend_on_placement(
    share: float, placement: dict[str, Any], reasons: set[Reason]
) -> None:
    resources = {"resources": placement or {"gpusPerNode": 1}}
    job = make_job({"rollout": {"gpuMemoryUtilization": share}} | resources)
    reported = {each.reason for each in violations(job, resolve(job))}
    assert reported - {Reason.NEEDS_READ_WRITE_MANY} == reasons


def test_passage_limit_uses_largest_top_k() -> None:
    many, few = KB | {"topK": 5}, ACTOR | {"topK": 1}
    for endpoints in ((many, few), (few, many)):
        asked = in_mode("Prompt", *endpoints, maxPassageTokens=205)
        assert Reason.PASSAGES_DO_NOT_FIT in remedies(asked)
    nothing = in_mode("Prompt", maxPassageTokens=2000)
    assert Reason.PASSAGES_DO_NOT_FIT not in remedies(nothing)


def test_rule_cases_cover_all_rules_and_reasons() -> None:
    of_form = set(list(Reason)[: list(Reason).index(Reason.GROUP_SIZE_MISMATCH)])
    of_operator = {rule for rule in RULES if not isinstance(rule, ServerRule)}
    assert {row.rule for row in ROWS} == of_operator
    assert {row.reason for row in ROWS} == set(Reason) - of_form


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_violations_are_collected_from_all_rules(row: Row) -> None:
    job = make_job(row.fails)
    job = job.model_copy(update={"status": row.status})
    reported = violations(job, resolve(job, row.facts), row.facts, in_pods=row.in_pods)
    assert (row.path, row.reason) in {(v.path, v.reason) for v in reported}


@pytest.mark.row("B2")
def test_violations_report_errors_first() -> None:
    job = make_job({"rollout": {"n": 1, "temperature": 0.0, "topP": 0.5}, "checkpoint.keepLast": 1})
    reported = violations(job, resolve(job))

    assert [v.reason for v in reported] == [
        Reason.GROUP_TOO_SMALL,
        Reason.KEEP_LAST_TOO_SMALL,
        Reason.TEMPERATURE_ZERO,
        Reason.TOP_P_BELOW_ONE,
    ]
    assert len(errors(reported)) == 3


def test_valid_job_does_not_cause_violations() -> None:
    job = make_job()
    assert violations(job, resolve(job)) == ()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_jobs_do_not_have_errors(path: Any) -> None:
    job = make_sample(path)
    assert errors(violations(job, resolve(job))) == ()


def test_unknown_gpu_memory_is_assumed_to_be_that_of_largest_gpu() -> None:
    job = make_job({"resources": {"gpusPerNode": 2, "gpuMemoryGib": 0}})
    reported = violations(job, resolve(job, KNOWN_7B), KNOWN_7B)
    assert {v.reason for v in reported} == {Reason.DATA_REPEATS, Reason.GPU_MEMORY_UNKNOWN}


def test_violation_messages_do_not_contain_secret_values() -> None:
    canary = "s3cr3t-canary"
    job = make_job(
        in_mode("Prompt", KB | {"headers": [{"name": "Authorization", "value": canary}]})
        | {"env": [{"name": "HF_TOKEN", "value": canary}]}
    )
    reported = violations(job, resolve(job))

    assert len(errors(reported)) == 2
    assert canary not in "".join(v.line() for v in reported)


def knobs() -> dict[str, st.SearchStrategy[Any]]:
    """Return a strategy per number, boolean and choice of the schema."""
    strategies: dict[str, st.SearchStrategy[Any]] = {}

    def walk(schema: dict[str, Any], place: str) -> None:
        kind = schema.get("type")
        if "enum" in schema:
            strategies[place] = st.sampled_from(schema["enum"])
        elif kind == "boolean":
            strategies[place] = st.booleans()
        elif kind == "integer":
            strategies[place] = st.integers(schema["minimum"], schema["maximum"])
        elif kind == "number":
            strategies[place] = st.floats(
                schema["minimum"],
                schema["maximum"],
                exclude_min=schema.get("exclusiveMinimum", False),
            )
        for name, field_schema in schema.get("properties", {}).items():
            walk(field_schema, f"{place}.{name}".removeprefix("."))

    walk(job_schema()["properties"]["spec"], "")
    del strategies["rollout.false"]  # in the schema only for its CEL rule
    # startFrom is optional and has a required field.
    return {place: s for place, s in strategies.items() if ".startFrom." not in place}


KNOBS = knobs()


@settings(max_examples=150, deadline=None)
@given(data=st.data(), facts=st.sampled_from([None, KNOWN_7B, KNOWN_TINY]))
def test_rules_and_plan_do_not_raise_for_valid_values(
    data: st.DataObject, facts: Facts | None
) -> None:
    places = data.draw(st.sets(st.sampled_from(sorted(KNOBS)), max_size=12))
    changes = {place: data.draw(KNOBS[place], label=place) for place in sorted(places)}
    if any(place.startswith("rollout.agent.container.") for place in places):
        changes["rollout.agent.container.image"] = "app:1"
    job = make_job(changes)
    resolved = resolve(job, facts)
    reported = violations(job, resolved, facts)
    text = render_plan(job, resolved, size(resolved.spec, facts), reported, facts)

    assert isinstance(job, RagGrpoJob)
    assert all(isinstance(violation, Violation) for violation in reported)
    assert max(map(len, text.splitlines())) <= 100


def test_reserved_mount_paths_are_allowed_for_local_folders() -> None:
    volumes = [{"name": "work", "claimName": "work", "mountPath": "/mnt/runs"}]
    job = apply_mounts(make_job({"volumes": volumes}), {"work": "/tmp"}, lambda _: True)
    here = violations(job, resolve(job), in_pods=False)
    assert job.spec.volumes[0].mount_path == "/tmp"
    assert Reason.RESERVED_NAME not in {violation.reason for violation in here}
    assert Reason.RESERVED_NAME in {violation.reason for violation in violations(job, resolve(job))}


def test_mounted_annotation_does_not_allow_reserved_mount_paths() -> None:
    job = make_job({"volumes": [WORK, {"name": "e", "claimName": "e", "mountPath": "/etc"}]})
    annotations = {"raggrpo.io/mounted": "true"}
    metadata = job.metadata.model_copy(update={"annotations": annotations})
    reported = violations(job.model_copy(update={"metadata": metadata}), resolve(job))
    assert [each.reason for each in errors(reported)] == [Reason.RESERVED_NAME]
