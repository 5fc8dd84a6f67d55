"""`Violation`: an error or warning about a field of a job."""

from dataclasses import dataclass
from enum import StrEnum

MAX_TEXT_LENGTH = 400
"""Maximum characters of a message or remedy, which may quote user input."""


class Severity(StrEnum):
    """Severity of a violation: an error rejects the job, a warning does not."""

    ERROR = "Error"
    WARNING = "Warning"


class Reason(StrEnum):
    """Reasons for violations, grouped by the module that uses them."""

    # File (yaml_text.py, parse.py)
    INVALID_YAML = "InvalidYaml"
    NOT_A_MAPPING = "NotAMapping"
    WRONG_KIND = "WrongKind"
    UNKNOWN_FIELD = "UnknownField"
    MISSING_FIELD = "MissingField"
    WRONG_TYPE = "WrongType"
    OUT_OF_RANGE = "OutOfRange"
    NOT_A_CHOICE = "NotAChoice"
    INVALID_FORMAT = "InvalidFormat"
    RELATIVE_PATH = "RelativePath"
    INVALID_NAME = "InvalidName"
    CREDENTIALS_IN_URL = "CredentialsInUrl"

    # Batch and group (rules/batch.py)
    GROUP_SIZE_MISMATCH = "GroupSizeMismatch"
    GROUP_TOO_SMALL = "GroupTooSmall"
    BATCH_SMALLER_THAN_WORLD = "BatchSmallerThanWorld"
    BATCH_UNEVEN_OVER_RANKS = "BatchUnevenOverRanks"
    MINI_BATCH_NOT_DIVISOR = "MiniBatchNotDivisor"
    MICRO_BATCH_TOO_SMALL = "MicroBatchTooSmall"
    GROUP_EXCEEDS_MICRO_BATCH = "GroupExceedsMicroBatch"

    # Number of steps and sequence lengths (rules/lengths.py)
    NO_TARGET = "NoTarget"
    TWO_TARGETS = "TwoTargets"
    BATCH_LARGER_THAN_DATA = "BatchLargerThanData"
    DATA_REPEATS = "DataRepeats"
    BATCHED_TOKENS_TOO_FEW = "BatchedTokensTooFew"
    CONTEXT_TOO_SHORT = "ContextTooShort"
    PASSAGES_DO_NOT_FIT = "PassagesDoNotFit"
    SEARCHES_DO_NOT_FIT = "SearchesDoNotFit"

    # Resources (rules/memory.py, rules/world.py)
    UTILIZATION_TOO_HIGH = "UtilizationTooHigh"
    UTILIZATION_TOO_LOW = "UtilizationTooLow"
    TRAINING_STATE_DOES_NOT_FIT = "TrainingStateDoesNotFit"
    GPU_MEMORY_UNKNOWN = "GpuMemoryUnknown"
    ACTIVATIONS_MAY_NOT_FIT = "ActivationsMayNotFit"
    WEIGHTS_DO_NOT_FIT = "WeightsDoNotFit"
    KV_CACHE_IS_SHORT = "KvCacheIsShort"
    TENSOR_PARALLEL_NOT_DIVISOR = "TensorParallelNotDivisor"
    TENSOR_PARALLEL_UNSUPPORTED = "TensorParallelUnsupported"
    HEADS_NOT_DIVISIBLE = "HeadsNotDivisible"
    EAGER_IS_SLOW = "EagerIsSlow"
    NO_GPUS = "NoGpus"
    ROLLOUT_GPUS_MISMATCH = "RolloutGpusMismatch"
    ROLLOUT_ENGINES_MISMATCH = "RolloutEnginesMismatch"
    WORKERS_EXCEED_CPUS = "WorkersExceedCpus"
    SHM_EXCEEDS_MEMORY = "ShmExceedsMemory"
    MEMORY_BELOW_ESTIMATE = "MemoryBelowEstimate"
    RAY_VERSION_MISMATCH = "RayVersionMismatch"
    RETRIEVER_MEMORY_TOO_SMALL = "RetrieverMemoryTooSmall"
    ASYNC_NEEDS_DISAGGREGATION = "AsyncNeedsDisaggregation"
    ROLLOUT_OPTIMIZATION_OFF = "RolloutOptimisationOff"

    # Retrieval and rewards (rules/retrieval.py, rules/reward.py)
    ENDPOINT_SOURCE = "EndpointSource"
    RETRIEVER_NEEDED = "RetrieverNeeded"
    RAG_ENDPOINTS_NEEDED = "RagEndpointsNeeded"
    ENDPOINT_UNUSED = "EndpointUnused"
    PROTOCOL_MISMATCH = "ProtocolMismatch"
    BODY_IS_TEXT = "BodyIsText"
    RAG_FIELD_MISSING = "RagFieldMissing"
    EMBEDDING_NEEDED = "EmbeddingNeeded"
    EMBEDDING_UNUSED = "EmbeddingUnused"
    INDEX_PATH_UNFIT = "IndexPathUnfit"
    TEMPLATE_PLACEHOLDER = "TemplatePlaceholder"
    COLUMN_NEEDED = "ColumnNeeded"
    REWARD_INCOMPLETE = "RewardIncomplete"
    REWARD_FIELD_UNUSED = "RewardFieldUnused"
    JUDGE_UNREADABLE = "JudgeUnreadable"
    NO_REWARD = "NoReward"

    # Agents (rules/agent.py)
    AGENT_MODE = "AgentMode"
    AGENT_INCOMPLETE = "AgentIncomplete"
    AGENT_IDENTIFICATION = "AgentIdentification"

    # Checkpoints, paths and validation (rules/checkpoint.py, output.py, paths.py)
    RESTARTS_NEED_CHECKPOINTS = "RestartsNeedCheckpoints"
    START_SOURCE_AMBIGUOUS = "StartSourceAmbiguous"
    START_IS_OWN_PATH = "StartIsOwnPath"
    CHECKPOINTS_TOO_RARE = "CheckpointsTooRare"
    KEEP_LAST_TOO_SMALL = "KeepLastTooSmall"
    BACKUP_NOT_A_MULTIPLE = "BackupNotAMultiple"
    CHECKPOINT_NOT_ON_VOLUME = "CheckpointNotOnVolume"
    CHECKPOINT_READ_ONLY = "CheckpointReadOnly"
    STAGING_PATH_UNFIT = "StagingPathUnfit"
    PUSH_CHANGES_SOURCE = "PushChangesSource"
    PATH_NOT_ON_VOLUME = "PathNotOnVolume"
    NEEDS_READ_WRITE_MANY = "NeedsReadWriteMany"
    VALIDATION_NEEDS_FILES = "ValidationNeedsFiles"
    BEST_NOT_MEASURED = "BestNotMeasured"
    BEST_RARELY_MEASURED = "BestRarelyMeasured"

    # Monitoring (rules/monitoring.py)
    WANDB_WITHOUT_KEY = "WandbWithoutKey"
    WANDB_UNUSED = "WandbUnused"
    DEBUG_LINES_HIDDEN = "DebugLinesHidden"

    # Names and secrets (rules/names_and_secrets.py)
    NAME_NOT_UNIQUE = "NameNotUnique"
    SECRET_IN_PLAIN_TEXT = "SecretInPlainText"
    ONE_SOURCE_OF_VALUE = "OneSourceOfValue"
    RESERVED_NAME = "ReservedName"

    # URLs of servers (rules/servers.py)
    INVALID_URL = "InvalidUrl"
    SERVER_NOT_LISTED = "ServerNotListed"

    # Requirements of Kubernetes (rules/cluster.py)
    IMAGE_NOT_A_NAME = "ImageNotAName"
    NOT_AN_EXTENDED_RESOURCE = "NotAnExtendedResource"
    TOLERATION_FORM = "TolerationForm"

    # Limits (rules/limits.py)
    AMOUNT_OUT_OF_RANGE = "AmountOutOfRange"
    PATH_TOO_LONG = "PathTooLong"
    SPEC_TOO_LARGE = "SpecTooLarge"
    TOO_MANY_STEPS = "TooManySteps"

    # Loss, optimizer and adapters (rules/numerics.py, rules/lora.py)
    TEMPERATURE_ZERO = "TemperatureZero"
    TEMPERATURE_OUT_OF_RANGE = "TemperatureOutOfRange"
    LEARNING_RATE_UNUSUAL = "LearningRateUnusual"
    CLIP_RANGE = "ClipRange"
    TOP_P_BELOW_ONE = "TopPBelowOne"
    WARMUP_EXCEEDS_RUN = "WarmupExceedsRun"
    DECAY_UNUSED = "DecayUnused"
    ATTENTION_UNAVAILABLE = "AttentionUnavailable"
    BF16_UNAVAILABLE = "Bf16Unavailable"
    ROW_LAYOUT_NOT_EXACT = "RowLayoutNotExact"
    LORA_TARGETS = "LoraTargets"
    LORA_RANK_TOO_LARGE = "LoraRankTooLarge"
    BACKOFF_RANGE = "BackoffRange"


@dataclass(frozen=True)
class Violation:
    """A violation: field, reason, message and remedy. A value, not an exception."""

    path: str
    """Field, such as `spec.data.trainFiles[0]`."""
    reason: Reason
    message: str
    remedy: str
    severity: Severity = Severity.ERROR

    def line(self) -> str:
        """Return one line that fits into the message of a condition."""
        return f"{self.path}: {_printable(self.message)} → {_printable(self.remedy)}"

    def __str__(self) -> str:
        return self.line()


def _printable(text: str) -> str:
    """Return a text cut to MAX_TEXT_LENGTH characters, with non-printable characters escaped."""
    short = text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)


def errors(violations: tuple[Violation, ...]) -> tuple[Violation, ...]:
    """Return the violations that reject the job."""
    return tuple(violation for violation in violations if violation.severity is Severity.ERROR)
