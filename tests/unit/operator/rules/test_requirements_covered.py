"""Every row A and C of the requirements has a job field, a rule, or a stated reason."""

import re
from dataclasses import dataclass
from typing import get_args

import pytest
from pydantic import BaseModel

from raggrpo_api.job import JobSpec
from raggrpo_operator.core.spec.violation import Reason


@dataclass(frozen=True)
class Elsewhere:
    """A row that neither a field nor a rule can hold, and where it is done."""

    reason: str


Evidence = str | Reason | Elsewhere

COVERED: dict[str, tuple[Evidence, ...]] = {
    "A1": ("rollout.n", "algorithm.groupSize", Reason.GROUP_SIZE_MISMATCH),
    "A2": ("preset", "data.trainBatchSize", "rollout.gpuMemoryUtilization",
           "rollout.temperature", "data.numWorkers"),
    "A3": ("rollout.enableChunkedPrefill", "rollout.enablePrefixCaching",
           Reason.ROLLOUT_OPTIMISATION_OFF),
    "A4": ("retrieval.warmUpTimeoutSeconds", "recovery.deadlines.warmingRetrievalSeconds",
           Reason.RETRIEVER_NEEDED),
    "A5": ("resources.shmSize", Reason.SHM_EXCEEDS_MEMORY),
    "A6": ("data.stageToLocalDisk",),
    "A7": ("preset", "data.maxSamples"),
    "A8": ("validation.beforeTraining", "validation.everySteps", Reason.VALIDATION_NEEDS_FILES),
    "A9": (Elsewhere("status.progress and the local progress display"),),
    "A10": ("recovery.deadlines.loadingModelSeconds", "recovery.deadlines.firstStepSeconds"),
    "A11": ("monitoring.debug.modelOutput", "monitoring.debug.ragCalls",
            "monitoring.debug.scoring"),
    "A12": ("recovery.deadlines.preflightSeconds", Reason.RELATIVE_PATH,
            Elsewhere("the checks themselves run in preflight")),
    "A13": ("retrieval.onFailure", "retrieval.maxFailureRatio"),
    "A14": ("data.columns.context", "retrieval.actorOutput.fields", Reason.RAG_FIELD_MISSING,
            Reason.COLUMN_NEEDED),
    "A15": (Elsewhere("the command raggrpo rag-test"),),
    "A16": (Elsewhere("each attempt's configuration is kept with its hash; raggrpo diff"),),
    "A17": (Elsewhere("stage times are recorded per attempt; raggrpo compare"),),
    "A18": ("data.numWorkers", "data.prefetchFactor", Reason.WORKERS_EXCEED_CPUS),
    "A19": ("data.maxPromptLength", "data.maxResponseLength", "training.rowLayout",
            Reason.CONTEXT_TOO_SHORT),
    "A20": ("training.precision", "training.compile", "training.gradientCheckpointing",
            "training.tokensPerMicroBatch"),
    "A21": ("training.precision",
            Elsewhere("trainer and engine read one field, so that they cannot conflict")),
    "A22": ("validation.maxSamples", "checkpoint.keepLast"),
    "A23": ("monitoring.mode", "monitoring.logEverySteps", "monitoring.tensorboardFlushSeconds",
            "monitoring.wandb.project", Reason.WANDB_WITHOUT_KEY, Reason.WANDB_UNUSED),
    "A24": ("preset", Reason.NOT_A_CHOICE),
    "A25": (Elsewhere("condition SlowingDown, from the attempt's own step times"),),
    "A26": (Elsewhere("condition HostMemoryGrowing, bounded logs"),),
    "A27": ("checkpoint.everySteps", "checkpoint.keepLast", "checkpoint.keepBest",
            "checkpoint.backup.url", "checkpoint.backup.everySteps",
            Reason.BACKUP_NOT_A_MULTIPLE),
    "A28": (Reason.KEEP_LAST_TOO_SMALL, Elsewhere("the trainer's order of writing and deleting")),
    "A29": ("monitoring.performanceEverySteps", "monitoring.gpuEverySteps",
            "monitoring.flopsEverySteps"),
    "A30": ("recovery.maxRestarts", Elsewhere("SIGTERM saves before the driver ends")),
    "A31": ("recovery.onOutOfMemory", "training.gradientCheckpointing"),
    "A32": ("model.attention", Reason.ATTENTION_UNAVAILABLE),
    "A33": ("resources.nodes", "resources.gpusPerNode", "rollout.tensorParallelSize",
            "training.tokensPerMicroBatch"),
    "A34": ("monitoring.logDir",),
    "A35": (Elsewhere("a report per job; raggrpo compare"),),
    "C1": (Reason.GROUP_SIZE_MISMATCH, Reason.GROUP_TOO_SMALL),
    "C2": (Reason.BATCH_SMALLER_THAN_WORLD, Reason.BATCH_UNEVEN_OVER_RANKS,
           Elsewhere("rows are packed by tokens, so that uneven division only warns")),
    "C3": (Reason.MINI_BATCH_NOT_DIVISOR, Reason.MICRO_BATCH_TOO_SMALL),
    "C4": (Reason.UTILIZATION_TOO_HIGH, Reason.TRAINING_STATE_DOES_NOT_FIT,
           Reason.ACTIVATIONS_MAY_NOT_FIT),
    "C5": (Reason.WEIGHTS_DO_NOT_FIT, Reason.TENSOR_PARALLEL_NOT_DIVISOR,
           Reason.HEADS_NOT_DIVISIBLE),
    "C6": (Reason.BATCHED_TOKENS_TOO_FEW, Reason.CONTEXT_TOO_SHORT),
    "C7": (Reason.EAGER_IS_SLOW,),
    "C8": (Reason.PASSAGES_DO_NOT_FIT, Reason.SEARCHES_DO_NOT_FIT, "data.allowTruncation",
           "retrieval.maxPassageTokens"),
    "C9": (Reason.RESTARTS_NEED_CHECKPOINTS, Reason.CHECKPOINTS_TOO_RARE),
    "C10": (Reason.KEEP_LAST_TOO_SMALL,),
    "C11": (Reason.RELATIVE_PATH, Reason.CHECKPOINT_NOT_ON_VOLUME, Reason.NEEDS_READ_WRITE_MANY),
    "C12": (Reason.NO_GPUS, Reason.ROLLOUT_GPUS_MISMATCH, Reason.WORKERS_EXCEED_CPUS,
            Reason.MEMORY_BELOW_ESTIMATE),
    "C13": (Reason.RAY_VERSION_MISMATCH,),
    "C14": (Reason.INVALID_NAME, Reason.NAME_NOT_UNIQUE),
    "C15": (Reason.SECRET_IN_PLAIN_TEXT, Reason.CREDENTIALS_IN_URL, "env.secretKeyRef",
            "retrieval.endpoints.headers.secretKeyRef"),
    "C16": (Reason.ASYNC_NEEDS_DISAGGREGATION,),
    "C17": (Reason.DATA_REPEATS, Reason.BATCH_LARGER_THAN_DATA, Reason.NO_TARGET),
    "C18": ("training.precision", Reason.ATTENTION_UNAVAILABLE,
            Elsewhere("compile always uses dynamic shapes; there is no other setting")),
    "C19": (Reason.TEMPERATURE_ZERO, Reason.LEARNING_RATE_UNUSUAL, Reason.CLIP_RANGE),
    "C20": (Reason.RETRIEVER_MEMORY_TOO_SMALL,),
}  # fmt: skip


ROWS_OF_REASON: dict[Reason, str] = {
    Reason.INVALID_YAML: "A12",
    Reason.NOT_A_MAPPING: "A12",
    Reason.WRONG_KIND: "A12",
    Reason.UNKNOWN_FIELD: "A12",
    Reason.MISSING_FIELD: "A12",
    Reason.WRONG_TYPE: "A12",
    Reason.OUT_OF_RANGE: "C19",
    Reason.NOT_A_CHOICE: "A24",
    Reason.INVALID_FORMAT: "A12",
    Reason.RELATIVE_PATH: "C11, A12",
    Reason.INVALID_NAME: "C14",
    Reason.CREDENTIALS_IN_URL: "C15",
    Reason.GROUP_SIZE_MISMATCH: "C1, A1",
    Reason.GROUP_TOO_SMALL: "C1",
    Reason.BATCH_SMALLER_THAN_WORLD: "C2",
    Reason.BATCH_UNEVEN_OVER_RANKS: "C2",
    Reason.MINI_BATCH_NOT_DIVISOR: "C3",
    Reason.MICRO_BATCH_TOO_SMALL: "C3",
    Reason.GROUP_EXCEEDS_MICRO_BATCH: "C3",
    Reason.NO_TARGET: "C17",
    Reason.TWO_TARGETS: "C17",
    Reason.BATCH_LARGER_THAN_DATA: "C17",
    Reason.DATA_REPEATS: "C17",
    Reason.BATCHED_TOKENS_TOO_FEW: "C6",
    Reason.CONTEXT_TOO_SHORT: "C6, A19",
    Reason.PASSAGES_DO_NOT_FIT: "C8",
    Reason.SEARCHES_DO_NOT_FIT: "C8",
    Reason.UTILIZATION_TOO_HIGH: "C4",
    Reason.UTILIZATION_TOO_LOW: "C4",
    Reason.TRAINING_STATE_DOES_NOT_FIT: "C4",
    Reason.ACTIVATIONS_MAY_NOT_FIT: "C4",
    Reason.WEIGHTS_DO_NOT_FIT: "C5",
    Reason.TENSOR_PARALLEL_NOT_DIVISOR: "C5",
    Reason.HEADS_NOT_DIVISIBLE: "C5",
    Reason.EAGER_IS_SLOW: "C7",
    Reason.NO_GPUS: "C12",
    Reason.ROLLOUT_GPUS_MISMATCH: "C12",
    Reason.WORKERS_EXCEED_CPUS: "C12, A18",
    Reason.SHM_EXCEEDS_MEMORY: "C12, A5",
    Reason.MEMORY_BELOW_ESTIMATE: "C12",
    Reason.RAY_VERSION_MISMATCH: "C13",
    Reason.RETRIEVER_MEMORY_TOO_SMALL: "C20",
    Reason.ASYNC_NEEDS_DISAGGREGATION: "C16",
    Reason.ROLLOUT_OPTIMISATION_OFF: "A3",
    Reason.ENDPOINT_SOURCE: "B21",
    Reason.RETRIEVER_NEEDED: "A4",
    Reason.RAG_ENDPOINTS_NEEDED: "A4, A14",
    Reason.ENDPOINT_UNUSED: "A4",
    Reason.PROTOCOL_MISMATCH: "A14",
    Reason.RAG_FIELD_MISSING: "A14",
    Reason.VECTORS_NEEDED: "B21",
    Reason.TEMPLATE_PLACEHOLDER: "C8",
    Reason.COLUMN_NEEDED: "A14",
    Reason.REWARD_INCOMPLETE: "A14",
    Reason.REWARD_FIELD_UNUSED: "A14",
    Reason.NO_REWARD: "C19",
    Reason.RESTARTS_NEED_CHECKPOINTS: "C9",
    Reason.CHECKPOINTS_TOO_RARE: "C9",
    Reason.KEEP_LAST_TOO_SMALL: "C10, A28",
    Reason.BACKUP_NOT_A_MULTIPLE: "A27",
    Reason.NO_VOLUME: "C11",
    Reason.CHECKPOINT_NOT_ON_VOLUME: "C11",
    Reason.CHECKPOINT_READ_ONLY: "C11",
    Reason.PATH_NOT_ON_VOLUME: "C11",
    Reason.NEEDS_READ_WRITE_MANY: "C11",
    Reason.VALIDATION_NEEDS_FILES: "A8",
    Reason.WANDB_WITHOUT_KEY: "A23",
    Reason.WANDB_UNUSED: "A23",
    Reason.NAME_NOT_UNIQUE: "C14",
    Reason.SECRET_IN_PLAIN_TEXT: "C15",
    Reason.ONE_SOURCE_OF_VALUE: "C15",
    Reason.RESERVED_NAME: "C14",
    Reason.TEMPERATURE_ZERO: "C19",
    Reason.LEARNING_RATE_UNUSUAL: "C19",
    Reason.CLIP_RANGE: "C19",
    Reason.TOP_P_BELOW_ONE: "C19",
    Reason.WARMUP_EXCEEDS_RUN: "C19",
    Reason.ATTENTION_UNAVAILABLE: "C18, A32",
    Reason.BACKOFF_RANGE: "B6",
}


def field_at(path: str) -> bool:
    """Tell whether the specification has a field there; lists stand for their items."""
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


def test_every_row_is_covered() -> None:
    rows = [f"A{number}" for number in range(1, 36)] + [f"C{number}" for number in range(1, 21)]
    assert list(COVERED) == rows
    assert all(COVERED.values())


@pytest.mark.parametrize("row", COVERED)
def test_what_covers_a_row_exists(row: str) -> None:
    for evidence in COVERED[row]:
        match evidence:
            case Reason():
                assert row in ROWS_OF_REASON[evidence].split(", "), evidence
            case Elsewhere(reason):
                assert len(reason.split()) > 2
            case path:
                assert field_at(path), path


def test_every_reason_names_its_rows() -> None:
    assert set(ROWS_OF_REASON) == set(Reason)
    for rows in ROWS_OF_REASON.values():
        assert all(re.fullmatch("[ABC][0-9]+", row) for row in rows.split(", "))


def test_a_field_that_does_not_exist_is_noticed() -> None:
    assert not field_at("rollout.groupSize")
    assert not field_at("rollout.n.deeper")
    assert field_at("retrieval.endpoints.headers.secretKeyRef.key")
