"""Memory rules at their limits, and the source of GPU memory in messages."""

from collections.abc import Callable
from typing import Any

import pytest

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import estimate, size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Reason, Violation
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, make_job

THREE = {"resources": {"gpusPerNode": 3, "gpuMemoryGib": 80}}
SHARED = THREE | {"rollout": {"tensorParallelSize": 3}}
GPUS8 = {"gpusPerNode": 8, "gpuMemoryGib": 80}
DISAGGREGATED = {"placement": "Disaggregated", "rolloutGpus": 8}
CORPUS = {"corpus": "/mnt/runs/corpus.jsonl"}
Measure = Callable[[JobSpec, Facts], int]


def reported(changes: dict[str, Any], facts: Facts) -> dict[Reason, Violation]:
    job = make_job(changes)
    return {each.reason: each for each in violations(job, resolve(job, facts), facts)}


def facts_where(measure: Measure, value: int, changes: dict[str, Any]) -> Facts:
    """Return facts of a model for which `measure`, which grows with its size, has this value."""
    spec = resolve(make_job(changes)).spec
    for vocabulary in range(1, 200):
        low, high = 0, 10**12
        while low < high:
            middle = (low + high) // 2
            facts = Facts(
                parameters=middle, vocabulary=vocabulary, hidden_size=1, layers=2000, kv_heads=1,
                head_size=1,
            )  # fmt: skip
            if measure(spec, facts) == value:
                return facts
            low, high = (middle + 1, high) if measure(spec, facts) < value else (low, middle)
    raise AssertionError("no such model")


@pytest.mark.parametrize("short", [0, 1])
@pytest.mark.parametrize(
    ("measure", "changes", "reason"),
    [
        (gpu_memory.training_state_excess, THREE, Reason.TRAINING_STATE_DOES_NOT_FIT),
        (gpu_memory.engine_excess, SHARED, Reason.WEIGHTS_DO_NOT_FIT),
    ],
    ids=["training state", "engine"],
)
def test_memory_rule_limits_are_exact_to_one_byte(
    measure: Measure, changes: dict[str, Any], reason: Reason, short: int
) -> None:
    facts = facts_where(measure, short, changes)
    assert (reason in reported(changes, facts)) is bool(short)


@pytest.mark.parametrize(("lacking", "is_reported"), [(0, True), (1, False)])
def test_activations_are_checked_only_if_training_state_fits(
    lacking: int, is_reported: bool
) -> None:
    facts = facts_where(lambda *known: -gpu_memory.activation_room(*known), lacking, THREE)
    assert (Reason.ACTIVATIONS_MAY_NOT_FIT in reported(THREE, facts)) is is_reported


@pytest.mark.parametrize(("placement", "share"), [({}, "48.0 GiB"), (DISAGGREGATED, "0 B")])
def test_gpu_memory_of_engine_depends_on_placement(placement: dict[str, Any], share: str) -> None:
    facts = KNOWN_7B.model_copy(update={"parameters": 70_000_000_000})
    by_reason = reported({"resources": GPUS8 | placement}, facts)[
        Reason.TRAINING_STATE_DOES_NOT_FIT
    ]
    assert f"80.0 GiB minus {share} for the engine" in by_reason.message


@pytest.mark.parametrize(
    ("gib", "labeled", "source"),
    [
        (80, 0, "80.0 GiB"),
        (80, 24 * 1024, "80.0 GiB"),
        (0, 24 * 1024, "24.0 GiB (from the nodes' labels)"),
        (0, 0, "268.2 GiB (unknown; the largest of any GPU)"),
    ],
)
def test_memory_violation_message_contains_gpu_memory_and_source(
    gib: int, labeled: int, source: str
) -> None:
    facts = KNOWN_7B.model_copy(update={"parameters": 400_000_000_000, "gpu_memory_mib": labeled})
    by_reason = reported({"resources": GPUS8 | {"gpuMemoryGib": gib}}, facts)
    message = by_reason[Reason.TRAINING_STATE_DOES_NOT_FIT].message
    assert f"; the limit is {source} minus " in message


@pytest.mark.parametrize(
    ("longest", "recomputed", "remedy"),
    [
        (
            4173,
            False,
            "set training.tokensPerMicroBatch: 4173, or set training.gradientCheckpointing: true",
        ),
        (4174, False, "set training.gradientCheckpointing: true"),
    ],
)
def test_suggested_token_budget_fits_longest_sequence(
    longest: int, recomputed: bool, remedy: str
) -> None:
    changes = {
        "resources": GPUS8 | {"gpuMemoryGib": 48},
        "data.maxPromptLength": longest - 512,
        "training.gradientCheckpointing": recomputed,
    }
    assert reported(changes, KNOWN_7B)[Reason.ACTIVATIONS_MAY_NOT_FIT].remedy == remedy


def test_more_gpus_are_suggested_if_no_setting_helps() -> None:
    changes = {
        "resources": {"gpusPerNode": 8, "gpuMemoryGib": 40},
        "data.maxPromptLength": 200_000,
        "training": {
            "totalSteps": 1, "gradientCheckpointing": True, "tokensPerMicroBatch": 400_000,
        },
    }  # fmt: skip
    violation = reported(changes, KNOWN_7B)[Reason.ACTIVATIONS_MAY_NOT_FIT]
    assert violation.remedy == "request more GPUs, or shorten prompts and responses"


def test_weights_message_contains_kv_cache_of_one_sequence() -> None:
    by_reason = reported({"resources": {"gpusPerNode": 8, "gpuMemoryGib": 24}}, KNOWN_7B)
    message = by_reason[Reason.WEIGHTS_DO_NOT_FIT].message
    assert "weights of 14.2 GiB, 2 GiB of CUDA graphs and 84.0 MiB of KV cache" in message


def test_gpu_memory_is_checked_only_with_gpus_and_known_model() -> None:
    large = KNOWN_7B.model_copy(update={"parameters": 10**12, "rows": 10**9})
    on_cpus = reported({"resources": {"device": "CPU"}}, large)
    of_gpus = {Reason.TRAINING_STATE_DOES_NOT_FIT, Reason.GPU_MEMORY_UNKNOWN}
    assert not of_gpus & on_cpus.keys()
    unknown = {"resources": {"gpusPerNode": 8}}
    assert reported(unknown, Facts()) == {}
    assert reported(unknown, Facts(parameters=1)).keys() == {Reason.GPU_MEMORY_UNKNOWN}


@pytest.mark.parametrize(("more", "is_warned"), [(0, False), (-1, True)])
@pytest.mark.parametrize("resource", ["memory", "shm"])
def test_specified_memory_below_estimate_causes_warning(
    resource: str, more: int, is_warned: bool
) -> None:
    resources = {"shmSize": "64Gi"} if resource == "memory" else {}
    sizing = size(resolve(make_job({"resources": GPUS8 | resources}), KNOWN_TINY).spec, KNOWN_TINY)
    name = {"memory": "memory", "shm": "shmSize"}[resource]
    given = {name: str(estimate(sizing, resource) + more)}
    by_reason = reported({"resources": GPUS8 | resources | given}, KNOWN_TINY)
    assert (Reason.MEMORY_BELOW_ESTIMATE in by_reason) is is_warned


@pytest.mark.parametrize(("more", "is_rejected"), [(0, False), (-1, True)])
def test_retriever_memory_below_estimate_is_rejected(more: int, is_rejected: bool) -> None:
    kb = {"name": "kb", "managed": CORPUS | {"memory": str(4 * GIB + GIB // 2 + more)}}
    actor = {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": "http://a:1/chat"}
    changes = {"retrieval": {"mode": "Prompt", "endpoints": [actor, kb]}}
    by_reason = reported(changes, Facts(corpus_bytes=GIB))
    assert (Reason.RETRIEVER_MEMORY_TOO_SMALL in by_reason) is is_rejected
