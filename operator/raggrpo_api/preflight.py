"""`PreflightResult`: named checks and model facts as JSON of at most 4 KiB."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel


class CheckId(StrEnum):
    """The launch check-list; every one is a named result."""

    PATHS = "Paths"
    MODEL_READABLE = "ModelReadable"
    DATA_READABLE = "DataReadable"
    DATA_COLUMNS = "DataColumns"
    SAMPLE_LENGTHS = "SampleLengths"
    RETRIEVAL_REACHABLE = "RetrievalReachable"
    CHECKPOINT_WRITABLE = "CheckpointWritable"
    CHECKPOINT_SPACE = "CheckpointSpace"
    CHECKPOINT_FREE = "CheckpointFree"
    REWARD_CODE = "RewardCode"
    GPU_MEMORY = "GpuMemory"
    RULES_ON_FACTS = "RulesOnFacts"


class CheckState(StrEnum):
    """Outcome of a check."""

    PASSED = "Passed"
    FAILED = "Failed"
    NOT_EVALUATED = "NotEvaluated"


class Check(ApiModel):
    """One named result."""

    id: CheckId
    state: CheckState
    evidence: Annotated[str, Field(max_length=512)] = ""
    """What was seen: file, column, endpoint, numbers."""


class Facts(ApiModel):
    """What sizing and the rules need to know about model and data."""

    parameters: int = 0
    layers: int = 0
    hidden_size: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    vocabulary: int = 0
    context_length: int = 0
    rows: int = 0
    """Rows of the training files after maxSamples."""
    corpus_bytes: int = 0
    """Bytes of the managed retriever's corpus and vectors."""
    ray_version: str = ""
    schema_digest: str = ""


class PreflightResult(ApiModel):
    """Facts come first, so that even a truncated message can size the job."""

    facts: Facts = Facts()
    checks: Annotated[list[Check], Field(max_length=32)] = []
    truncated: bool = False
    """Evidence was shortened to fit 4 KiB."""
    exit_code: int = 0
    """The failure's exit code (2 to 5), 0 when every check passed."""
