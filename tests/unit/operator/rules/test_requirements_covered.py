"""Each row A and C of the requirements has a field, a rule or a stated reason."""

from dataclasses import dataclass
from typing import get_args

import pytest
from pydantic import BaseModel

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_operator.core.spec.violation import Reason


@dataclass(frozen=True)
class Elsewhere:
    """A row that is covered neither by a field nor by a rule."""

    reason: str


Evidence = str | Reason | Elsewhere

COVERED: dict[str, tuple[Evidence, ...]] = {
    "A1": ("rollout.n", "algorithm.groupSize", Reason.GROUP_SIZE_MISMATCH),
    "A2": ("preset", "data.trainBatchSize", "rollout.gpuMemoryUtilization",
           "rollout.temperature", "data.numWorkers"),
    "A3": ("rollout.enableChunkedPrefill", "rollout.enablePrefixCaching",
           Reason.ROLLOUT_OPTIMIZATION_OFF),
    "A4": ("retrieval.warmUpTimeoutSeconds", "recovery.deadlines.warmingRetrievalSeconds",
           Reason.RETRIEVER_NEEDED, Reason.ENDPOINT_UNUSED, Reason.RAG_ENDPOINTS_NEEDED),
    "A5": ("resources.shmSize", Reason.SHM_EXCEEDS_MEMORY),
    "A6": ("data.stageToLocalDisk",),
    "A7": ("preset", "data.maxSamples"),
    "A8": ("validation.beforeTraining", "validation.everySteps", Reason.VALIDATION_NEEDS_FILES),
    "A9": (Elsewhere("status.progress and the local progress display"),),
    "A10": ("recovery.deadlines.loadingModelSeconds", "recovery.deadlines.firstStepSeconds"),
    "A11": ("monitoring.debug.modelOutput", "monitoring.debug.ragCalls",
            "monitoring.debug.scoring", "monitoring.logLevel", Reason.DEBUG_LINES_HIDDEN),
    "A12": ("recovery.deadlines.preflightSeconds", Reason.RELATIVE_PATH, Reason.INVALID_YAML,
            Reason.NOT_A_MAPPING, Reason.WRONG_KIND, Reason.UNKNOWN_FIELD, Reason.MISSING_FIELD,
            Reason.WRONG_TYPE, Reason.INVALID_FORMAT,
            Elsewhere("the checks themselves run in preflight")),
    "A13": ("retrieval.onFailure", "retrieval.maxFailureRatio"),
    "A14": ("data.columns.context", "retrieval.actorOutput.fields", Reason.RAG_FIELD_MISSING,
            Reason.COLUMN_NEEDED, Reason.RAG_ENDPOINTS_NEEDED, Reason.PROTOCOL_MISMATCH,
            Reason.BODY_IS_TEXT,
            Reason.REWARD_INCOMPLETE, Reason.REWARD_FIELD_UNUSED,
            Reason.JUDGE_UNREADABLE, "reward.functions.judge.prompt", "retrieval.endpoints.body"),
    "A15": (Elsewhere("the command raggrpo rag-test"),),
    "A16": (Elsewhere("each attempt's configuration is stored with its hash; raggrpo diff"),),
    "A17": ("training.startFrom", Reason.START_SOURCE_AMBIGUOUS, Reason.START_IS_OWN_PATH,
            Elsewhere("stage times are recorded per attempt; raggrpo compare")),
    "A18": ("data.numWorkers", "data.prefetchFactor", Reason.WORKERS_EXCEED_CPUS),
    "A19": ("data.maxPromptLength", "data.maxResponseLength", "training.rowLayout",
            Reason.CONTEXT_TOO_SHORT),
    "A20": ("training.precision", "training.compile", "training.gradientCheckpointing",
            "training.tokensPerMicroBatch"),
    "A21": ("training.precision",
            Elsewhere("trainer and engine read one field, so that they cannot conflict")),
    "A22": ("validation.maxSamples", "checkpoint.keepLast"),
    "A23": ("monitoring.mode", "monitoring.logEverySteps", "monitoring.tensorboardFlushSeconds",
            "monitoring.historyWindow", "monitoring.wandb.project", Reason.WANDB_WITHOUT_KEY,
            Reason.WANDB_UNUSED),
    "A24": ("preset", Reason.NOT_A_CHOICE),
    "A25": (Elsewhere("condition SlowingDown, from the attempt's own step times"),),
    "A26": (Elsewhere("condition HostMemoryGrowing, bounded logs"),),
    "A27": ("checkpoint.everySteps", "checkpoint.keepLast", "checkpoint.keepBest",
            "checkpoint.backup.url", "checkpoint.backup.everySteps",
            Reason.BACKUP_NOT_A_MULTIPLE, "checkpoint.bestBy", Reason.BEST_NOT_MEASURED,
            Reason.BEST_RARELY_MEASURED),
    "A28": (Reason.KEEP_LAST_TOO_SMALL, Elsewhere("the trainer's order of writing and deleting")),
    "A29": ("monitoring.performanceEverySteps", "monitoring.gpuEverySteps",
            "monitoring.flopsEverySteps"),
    "A30": ("recovery.maxRestarts", Elsewhere("SIGTERM saves before the driver ends")),
    "A31": ("recovery.onOutOfMemory", "training.gradientCheckpointing"),
    "A32": ("model.attention", Reason.ATTENTION_UNAVAILABLE),
    "A33": ("resources.nodes", "resources.gpusPerNode", "rollout.tensorParallelSize",
            "training.tokensPerMicroBatch", "training.learningRateSchedule"),
    "A34": ("monitoring.logDir",),
    "A35": (Elsewhere("a report per job; raggrpo compare"),),
    "C1": (Reason.GROUP_SIZE_MISMATCH, Reason.GROUP_TOO_SMALL),
    "C2": (Reason.BATCH_SMALLER_THAN_WORLD, Reason.BATCH_UNEVEN_OVER_RANKS,
           Elsewhere("rows are packed by tokens, so that uneven division only warns")),
    "C3": (Reason.MINI_BATCH_NOT_DIVISOR, Reason.MICRO_BATCH_TOO_SMALL,
           Reason.GROUP_EXCEEDS_MICRO_BATCH),
    "C4": (Reason.UTILIZATION_TOO_HIGH, Reason.TRAINING_STATE_DOES_NOT_FIT,
           Reason.ACTIVATIONS_MAY_NOT_FIT, Reason.UTILIZATION_TOO_LOW, Reason.GPU_MEMORY_UNKNOWN),
    "C5": (Reason.WEIGHTS_DO_NOT_FIT, Reason.KV_CACHE_IS_SHORT, Reason.TENSOR_PARALLEL_NOT_DIVISOR,
           Reason.TENSOR_PARALLEL_UNSUPPORTED, Reason.HEADS_NOT_DIVISIBLE),
    "C6": (Reason.BATCHED_TOKENS_TOO_FEW, Reason.CONTEXT_TOO_SHORT),
    "C7": (Reason.EAGER_IS_SLOW,),
    "C8": (Reason.PASSAGES_DO_NOT_FIT, Reason.SEARCHES_DO_NOT_FIT, "data.allowTruncation",
           "retrieval.maxPassageTokens", Reason.TEMPLATE_PLACEHOLDER),
    "C9": (Reason.RESTARTS_NEED_CHECKPOINTS, Reason.CHECKPOINTS_TOO_RARE),
    "C10": (Reason.KEEP_LAST_TOO_SMALL,),
    "C11": (Reason.RELATIVE_PATH, Reason.STAGING_PATH_UNFIT, Reason.PUSH_CHANGES_SOURCE,
            Reason.CHECKPOINT_NOT_ON_VOLUME,
            Reason.NEEDS_READ_WRITE_MANY, Reason.CHECKPOINT_READ_ONLY, Reason.PATH_NOT_ON_VOLUME),
    "C12": (Reason.NO_GPUS, Reason.ROLLOUT_GPUS_MISMATCH, Reason.ROLLOUT_ENGINES_MISMATCH,
            Reason.WORKERS_EXCEED_CPUS,
            Reason.MEMORY_BELOW_ESTIMATE, Reason.SHM_EXCEEDS_MEMORY),
    "C13": (Reason.RAY_VERSION_MISMATCH,),
    "C14": (Reason.INVALID_NAME, Reason.NAME_NOT_UNIQUE, Reason.RESERVED_NAME),
    "C15": (Reason.SECRET_IN_PLAIN_TEXT, Reason.CREDENTIALS_IN_URL, "env.secretKeyRef",
            "retrieval.endpoints.headers.secretKeyRef", Reason.ONE_SOURCE_OF_VALUE),
    "C16": (Reason.ASYNC_NEEDS_DISAGGREGATION,),
    "C17": (Reason.DATA_REPEATS, Reason.BATCH_LARGER_THAN_DATA, Reason.NO_TARGET,
            Reason.TWO_TARGETS),
    "C18": ("training.precision", Reason.ATTENTION_UNAVAILABLE, Reason.BF16_UNAVAILABLE,
            Elsewhere("compile always uses dynamic shapes; there is no other setting")),
    "C19": (Reason.TEMPERATURE_ZERO, Reason.TEMPERATURE_OUT_OF_RANGE, Reason.LEARNING_RATE_UNUSUAL,
            Reason.CLIP_RANGE, Reason.OUT_OF_RANGE, Reason.NO_REWARD, Reason.WARMUP_EXCEEDS_RUN,
            Reason.DECAY_UNUSED, Reason.TOP_P_BELOW_ONE),
    "C20": (Reason.RETRIEVER_MEMORY_TOO_SMALL,),
}  # fmt: skip

OTHER_ROWS: dict[str, tuple[Reason, ...]] = {
    "D1": (Reason.ROW_LAYOUT_NOT_EXACT,),
    "F1": (Reason.LORA_TARGETS, Reason.LORA_RANK_TOO_LARGE),
    "F2": (Reason.AGENT_MODE, Reason.AGENT_INCOMPLETE, Reason.AGENT_IDENTIFICATION),
    "B6": (Reason.BACKOFF_RANGE,),
    "E12": (Reason.SERVER_NOT_LISTED,),
    "B23": (
        Reason.INVALID_URL,
        Reason.IMAGE_NOT_A_NAME,
        Reason.NOT_AN_EXTENDED_RESOURCE,
        Reason.TOLERATION_FORM,
        Reason.AMOUNT_OUT_OF_RANGE,
        Reason.PATH_TOO_LONG,
        Reason.SPEC_TOO_LARGE,
        Reason.TOO_MANY_STEPS,
    ),
    "B21": (
        Reason.ENDPOINT_SOURCE,
        Reason.EMBEDDING_NEEDED,
        Reason.EMBEDDING_UNUSED,
        Reason.INDEX_PATH_UNFIT,
    ),
}
"""Reasons by requirement row, for rows other than A and C."""


def field_at(path: str) -> bool:
    """Return whether the spec has a field at this path, which omits list indices."""
    model: type[BaseModel] | None = JobSpec
    for name in path.split("."):
        if model is None:
            return False
        fields = {field.alias: field for field in model.model_fields.values()}
        if name not in fields:
            return False
        annotation = fields[name].annotation
        candidates = (annotation, *get_args(annotation))
        model = next(
            (each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)),
            None,
        )
    return True


def test_requirement_rows_are_all_covered() -> None:
    rows = [f"A{number}" for number in range(1, 36)] + [f"C{number}" for number in range(1, 21)]
    assert list(COVERED) == rows
    assert all(COVERED.values())


@pytest.mark.parametrize("row", COVERED)
def test_requirement_evidence_is_existing_field_rule_or_stated_reason(row: str) -> None:
    for evidence in COVERED[row]:
        if isinstance(evidence, Elsewhere):
            assert len(evidence.reason.split()) > 2
        elif not isinstance(evidence, Reason):
            assert field_at(evidence), evidence


def test_violation_reasons_all_belong_to_requirement_row() -> None:
    named = (each for row in (COVERED | OTHER_ROWS).values() for each in row)
    assert {each for each in named if isinstance(each, Reason)} == set(Reason)


def test_field_at_detects_missing_field() -> None:
    assert not field_at("rollout.groupSize")
    assert not field_at("rollout.n.deeper")
    assert field_at("retrieval.endpoints.headers.secretKeyRef.key")
