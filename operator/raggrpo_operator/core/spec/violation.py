"""`Violation`: one mistake in a job, with its place, its reason and what to do. Holds no rule."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Whether the job is refused or only advised."""

    ERROR = "Error"
    WARNING = "Warning"


class Reason(StrEnum):
    """The closed set of reasons, each with the row of requirements it comes from."""

    # The file itself (parse.py)
    INVALID_YAML = "InvalidYaml"  # A12
    NOT_A_MAPPING = "NotAMapping"  # A12
    WRONG_KIND = "WrongKind"  # A12
    UNKNOWN_FIELD = "UnknownField"  # A12
    MISSING_FIELD = "MissingField"  # A12
    WRONG_TYPE = "WrongType"  # A12
    OUT_OF_RANGE = "OutOfRange"  # C19
    NOT_A_CHOICE = "NotAChoice"  # A24
    INVALID_FORMAT = "InvalidFormat"  # A12
    RELATIVE_PATH = "RelativePath"  # C11, A12
    INVALID_NAME = "InvalidName"  # C14
    CREDENTIALS_IN_URL = "CredentialsInUrl"  # C15

    # Batch and group (rules/batch.py)
    GROUP_SIZE_MISMATCH = "GroupSizeMismatch"  # C1, A1
    GROUP_TOO_SMALL = "GroupTooSmall"  # C1
    BATCH_SMALLER_THAN_WORLD = "BatchSmallerThanWorld"  # C2
    BATCH_UNEVEN_OVER_RANKS = "BatchUnevenOverRanks"  # C2
    MINI_BATCH_NOT_DIVISOR = "MiniBatchNotDivisor"  # C3
    MICRO_BATCH_TOO_SMALL = "MicroBatchTooSmall"  # C3
    GROUP_EXCEEDS_MICRO_BATCH = "GroupExceedsMicroBatch"  # C3

    # Length of the run and of sequences (rules/lengths.py)
    NO_TARGET = "NoTarget"  # C17
    TWO_TARGETS = "TwoTargets"  # C17
    BATCH_LARGER_THAN_DATA = "BatchLargerThanData"  # C17
    DATA_REPEATS = "DataRepeats"  # C17
    BATCHED_TOKENS_TOO_FEW = "BatchedTokensTooFew"  # C6
    CONTEXT_TOO_SHORT = "ContextTooShort"  # C6, A19
    PASSAGES_DO_NOT_FIT = "PassagesDoNotFit"  # C8
    SEARCHES_DO_NOT_FIT = "SearchesDoNotFit"  # C8

    # Processors and memory (rules/memory.py, rules/world.py)
    UTILIZATION_TOO_HIGH = "UtilizationTooHigh"  # C4
    UTILIZATION_TOO_LOW = "UtilizationTooLow"  # C4
    TRAINING_STATE_DOES_NOT_FIT = "TrainingStateDoesNotFit"  # C4
    ACTIVATIONS_MAY_NOT_FIT = "ActivationsMayNotFit"  # C4
    WEIGHTS_DO_NOT_FIT = "WeightsDoNotFit"  # C5
    TENSOR_PARALLEL_NOT_DIVISOR = "TensorParallelNotDivisor"  # C5
    HEADS_NOT_DIVISIBLE = "HeadsNotDivisible"  # C5
    EAGER_IS_SLOW = "EagerIsSlow"  # C7
    NO_GPUS = "NoGpus"  # C12
    ROLLOUT_GPUS_MISMATCH = "RolloutGpusMismatch"  # C12
    WORKERS_EXCEED_CPUS = "WorkersExceedCpus"  # C12, A18
    SHM_EXCEEDS_MEMORY = "ShmExceedsMemory"  # C12, A5
    MEMORY_BELOW_ESTIMATE = "MemoryBelowEstimate"  # C12
    RAY_VERSION_MISMATCH = "RayVersionMismatch"  # C13
    RETRIEVER_MEMORY_TOO_SMALL = "RetrieverMemoryTooSmall"  # C20
    ASYNC_NEEDS_DISAGGREGATION = "AsyncNeedsDisaggregation"  # C16
    ROLLOUT_OPTIMISATION_OFF = "RolloutOptimisationOff"  # A3

    # Retrieval and rewards (rules/retrieval.py, rules/reward.py)
    ENDPOINT_SOURCE = "EndpointSource"  # B21
    RETRIEVER_NEEDED = "RetrieverNeeded"  # A4
    RAG_ENDPOINTS_NEEDED = "RagEndpointsNeeded"  # A4, A14
    ENDPOINT_UNUSED = "EndpointUnused"  # A4
    PROTOCOL_MISMATCH = "ProtocolMismatch"  # A14
    RAG_FIELD_MISSING = "RagFieldMissing"  # A14
    VECTORS_NEEDED = "VectorsNeeded"  # B21
    TEMPLATE_PLACEHOLDER = "TemplatePlaceholder"  # C8
    COLUMN_NEEDED = "ColumnNeeded"  # A14
    REWARD_INCOMPLETE = "RewardIncomplete"  # A14
    REWARD_FIELD_UNUSED = "RewardFieldUnused"  # A14
    NO_REWARD = "NoReward"  # C19

    # Checkpoints, paths and validation (rules/checkpoint.py, rules/paths.py)
    RESTARTS_NEED_CHECKPOINTS = "RestartsNeedCheckpoints"  # C9
    CHECKPOINTS_TOO_RARE = "CheckpointsTooRare"  # C9
    KEEP_LAST_TOO_SMALL = "KeepLastTooSmall"  # C10, A28
    BACKUP_NOT_A_MULTIPLE = "BackupNotAMultiple"  # A27
    NO_VOLUME = "NoVolume"  # C11
    CHECKPOINT_NOT_ON_VOLUME = "CheckpointNotOnVolume"  # C11
    CHECKPOINT_READ_ONLY = "CheckpointReadOnly"  # C11
    PATH_NOT_ON_VOLUME = "PathNotOnVolume"  # C11
    NEEDS_READ_WRITE_MANY = "NeedsReadWriteMany"  # C11
    VALIDATION_NEEDS_FILES = "ValidationNeedsFiles"  # A8

    # Monitoring (rules/monitoring.py)
    WANDB_WITHOUT_KEY = "WandbWithoutKey"  # A23
    WANDB_UNUSED = "WandbUnused"  # A23

    # Names and secrets (rules/names_and_secrets.py)
    NAME_NOT_UNIQUE = "NameNotUnique"  # C14
    SECRET_IN_PLAIN_TEXT = "SecretInPlainText"  # C15
    ONE_SOURCE_OF_VALUE = "OneSourceOfValue"  # C15
    RESERVED_NAME = "ReservedName"  # C14

    # Numbers of the objective (rules/numerics.py)
    TEMPERATURE_ZERO = "TemperatureZero"  # C19
    LEARNING_RATE_UNUSUAL = "LearningRateUnusual"  # C19
    CLIP_RANGE = "ClipRange"  # C19
    TOP_P_BELOW_ONE = "TopPBelowOne"  # C19
    WARMUP_EXCEEDS_RUN = "WarmupExceedsRun"  # C19
    ATTENTION_UNAVAILABLE = "AttentionUnavailable"  # C18, A32
    BACKOFF_RANGE = "BackoffRange"  # B6


@dataclass(frozen=True)
class Violation:
    """What is wrong, where, why, and what to do; a value, never an exception."""

    path: str
    """Place in the file, such as `spec.data.trainFiles[0]`."""
    reason: Reason
    message: str
    remedy: str
    severity: Severity = Severity.ERROR

    def line(self) -> str:
        """Return the whole of it on one line."""
        return f"{self.path}: {self.message} → {self.remedy}"

    def __str__(self) -> str:
        return self.line()


def errors(found: tuple[Violation, ...]) -> tuple[Violation, ...]:
    """Return those that refuse the job."""
    return tuple(violation for violation in found if violation.severity is Severity.ERROR)
