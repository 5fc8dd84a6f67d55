"""`PreflightResult`: named checks and model facts as JSON of at most 4 KiB."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.text import Message, ShortText
from raggrpo_api.spec.training import RowLayout


class CheckId(StrEnum):
    """The launch check-list; every one is a named result."""

    PATHS = "Paths"
    MODEL_READABLE = "ModelReadable"
    MODEL_FAMILY = "ModelFamily"
    DATA_READABLE = "DataReadable"
    DATA_COLUMNS = "DataColumns"
    SAMPLE_LENGTHS = "SampleLengths"
    RETRIEVAL_REACHABLE = "RetrievalReachable"
    EMBEDDING_READABLE = "EmbeddingReadable"
    CHECKPOINT_WRITABLE = "CheckpointWritable"
    CHECKPOINT_SPACE = "CheckpointSpace"
    CHECKPOINT_FREE = "CheckpointFree"
    REWARD_CODE = "RewardCode"
    GPU_MEMORY = "GpuMemory"
    RULES_ON_FACTS = "RulesOnFacts"


class CheckState(StrEnum):
    """Outcome of a check."""

    PASSED = "Passed"
    WARNED = "Warned"
    """Passed, but with something that is probably not what the job's author wants."""
    FAILED = "Failed"
    NOT_EVALUATED = "NotEvaluated"


class Check(ApiModel):
    """One named result."""

    id: CheckId
    state: CheckState
    evidence: Annotated[Message, Field(max_length=512)] = ""
    """What was seen: file, column, endpoint, numbers."""


class Facts(ApiModel):
    """What sizing and the rules need to know about model and data.

    The image that reports them is the tenant's: the limits keep every product of them within int64.
    """

    parameters: Annotated[int, Field(ge=0, le=10_000_000_000_000)] = 0
    layers: Annotated[int, Field(ge=0, le=2_000)] = 0
    hidden_size: Annotated[int, Field(ge=0, le=200_000)] = 0
    heads: Annotated[int, Field(ge=0, le=2_000)] = 0
    kv_heads: Annotated[int, Field(ge=0, le=2_000)] = 0
    head_size: Annotated[int, Field(ge=0, le=10_000)] = 0
    mlp_size: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Units of a layer's MLP that a token passes; of a mixture, those of the experts it visits."""
    vocabulary: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    context_length: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    row_layout: RowLayout | None = None
    """The rows in which the model trains exactly; none if unknown."""
    rows: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 0
    """Rows of the training files after maxSamples."""
    corpus_bytes: Annotated[int, Field(ge=0, le=1_000_000_000_000_000)] = 0
    """Bytes of the managed retrievers' corpora."""
    corpus_passages: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 0
    """Passages of the managed retrievers' corpora."""
    embedding_parameters: Annotated[int, Field(ge=0, le=10_000_000_000_000)] = 0
    """Parameters of the largest embedding model of a managed retriever."""
    embedding_dimension: Annotated[int, Field(ge=0, le=200_000)] = 0
    """Numbers in the longest vector of a managed retriever."""
    gpu_memory_mib: Annotated[int, Field(ge=0, le=1_048_576)] = 0
    """Memory of one GPU: the operator reads it from node labels, a rank measures it; 0: unknown."""
    gpu_compute_major: Annotated[int, Field(ge=0, le=99)] = 0
    """Major compute capability of the GPUs; 0: unknown. BF16 needs 8."""
    gpu_product: Annotated[ShortText, Field(max_length=64)] = ""
    ray_version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+-]*$", max_length=32)] = ""
    schema_digest: Annotated[ShortText, Field(max_length=64)] = ""


class PreflightResult(ApiModel):
    """Facts come first, so that even a truncated message can size the job."""

    facts: Facts = Facts()
    checks: Annotated[list[Check], Field(max_length=32)] = []
    truncated: bool = False
    """Evidence was shortened to fit 4 KiB."""
    exit_code: Annotated[int, Field(ge=0, le=255)] = 0
    """The failure's exit code: 2 to 5, or 15 if only services are down; 0: every check passed."""
