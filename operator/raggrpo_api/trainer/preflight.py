"""`PreflightResult`: checks and facts, as JSON of at most MAX_PREFLIGHT_BYTES."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.text import Message, ShortText
from raggrpo_api.spec.training import RowLayout


class CheckId(StrEnum):
    """Name of a preflight check."""

    PATHS = "Paths"
    MODEL_READABLE = "ModelReadable"
    MODEL_FAMILY = "ModelFamily"
    LORA_TARGETS = "LoraTargets"
    TOKENIZER = "Tokenizer"
    DATA_READABLE = "DataReadable"
    DATA_COLUMNS = "DataColumns"
    SAMPLE_LENGTHS = "SampleLengths"
    RETRIEVAL_REACHABLE = "RetrievalReachable"
    EMBEDDING_READABLE = "EmbeddingReadable"
    CHECKPOINT_WRITABLE = "CheckpointWritable"
    CHECKPOINT_SPACE = "CheckpointSpace"
    CHECKPOINT_FREE = "CheckpointFree"
    START_CHECKPOINT = "StartCheckpoint"
    REWARD_CODE = "RewardCode"
    AGENT_READY = "AgentReady"
    GPU_MEMORY = "GpuMemory"
    RULES_ON_FACTS = "RulesOnFacts"


class CheckState(StrEnum):
    """Outcome of a check."""

    PASSED = "Passed"
    WARNED = "Warned"
    """Passed, but the job probably does not do what the user intended."""
    FAILED = "Failed"
    NOT_EVALUATED = "NotEvaluated"


class Check(ApiModel):
    """Result of a check."""

    id: CheckId
    state: CheckState
    evidence: Annotated[Message, Field(max_length=512)] = ""
    """Observation: file, column, endpoint, numbers."""


class Facts(ApiModel):
    """Facts about model and data, for sizing and rules.

    An untrusted image reports the facts; the limits keep every product of facts within int64.
    """

    parameters: Annotated[int, Field(ge=0, le=10_000_000_000_000)] = 0
    layers: Annotated[int, Field(ge=0, le=2_000)] = 0
    hidden_size: Annotated[int, Field(ge=0, le=200_000)] = 0
    heads: Annotated[int, Field(ge=0, le=2_000)] = 0
    """Attention heads per layer."""
    kv_heads: Annotated[int, Field(ge=0, le=2_000)] = 0
    """Key-value heads per layer."""
    head_size: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Dimension of an attention head."""
    mlp_size: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Active MLP units per layer and token; for a mixture of experts, of the active experts."""
    adapted_layers: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Linear layers that get an adapter (training.lora); 0: unknown, or none."""
    adapter_parameters_per_rank: Annotated[int, Field(ge=0, le=100_000_000_000_000)] = 0
    """Parameters of all adapters of rank 1: the sum of inputs and outputs of these layers."""
    vocabulary: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    context_length: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    row_layout: RowLayout | None = None
    """Row layout in which the model trains exactly; null if unknown."""
    prompt_start: Annotated[ShortText, Field(max_length=64)] = ""
    """Special tokens that the tokenizer puts before prompts, such as <bos>."""
    rows: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 0
    """Rows of the training files, at most data.maxSamples."""
    corpus_bytes: Annotated[int, Field(ge=0, le=1_000_000_000_000_000)] = 0
    """Total size of the corpora of managed retrievers, in bytes."""
    corpus_passages: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 0
    """Total passages in the corpora of managed retrievers."""
    embedding_parameters: Annotated[int, Field(ge=0, le=10_000_000_000_000)] = 0
    """Parameters of the largest embedding model of the managed retrievers."""
    embedding_dimension: Annotated[int, Field(ge=0, le=200_000)] = 0
    """Largest embedding dimension of the managed retrievers."""
    gpu_memory_mib: Annotated[int, Field(ge=0, le=1_048_576)] = 0
    """Memory of one GPU in MiB, from node labels or measured by a rank; 0: unknown."""
    gpu_compute_major: Annotated[int, Field(ge=0, le=99)] = 0
    """Major compute capability of the GPUs; 0: unknown. BF16 requires 8."""
    gpu_product: Annotated[ShortText, Field(max_length=64)] = ""
    ray_version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+-]*$", max_length=32)] = ""
    schema_digest: Annotated[ShortText, Field(max_length=64)] = ""


class PreflightResult(ApiModel):
    """Result of preflight. Facts come first, so that they survive truncation."""

    facts: Facts = Facts()
    checks: Annotated[list[Check], Field(max_length=32)] = []
    truncated: bool = False
    """Whether the evidence of a check was shortened to fit the size limit."""
    exit_code: Annotated[int, Field(ge=0, le=255)] = 0
    """Exit code: 0 if all checks passed, 15 if only services are down, else 2 to 5 or 23."""
