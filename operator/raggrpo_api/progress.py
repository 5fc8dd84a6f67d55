"""`Progress`: what the trainer reports at GET /progress, at most 64 KiB."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .base import ApiModel


class Stage(StrEnum):
    """What an attempt is doing."""

    CONNECTING = "Connecting"
    LOADING_MODEL = "LoadingModel"
    STARTING_ROLLOUT = "StartingRollout"
    WARMING_RETRIEVAL = "WarmingRetrieval"
    FIRST_STEP = "FirstStep"
    TRAINING = "Training"
    CHECKPOINTING = "Checkpointing"
    VALIDATING = "Validating"
    EXPORTING = "Exporting"
    FINISHED = "Finished"


class CheckpointRef(ApiModel):
    """A complete checkpoint."""

    step: int
    """Steps done when it was saved."""
    path: str
    """Its folder."""
    time: str = ""
    """When it became complete (RFC 3339)."""
    world_size: int = 0
    """Trainer ranks that wrote it."""


class SkippedCheckpoint(ApiModel):
    """A checkpoint that was not used for resuming."""

    path: str
    reason: str


class Metric(ApiModel):
    """A named number, as text (same shape as Kubeflow's trainer status)."""

    name: Annotated[str, Field(max_length=64)]
    value: Annotated[str, Field(max_length=64)]


class Failure(ApiModel):
    """Why the attempt is ending, in terms a user can act on."""

    exit_code: int
    message: str


class Progress(ApiModel):
    """State of one attempt; readers must check `attempt` before trusting anything else.

    Unknown fields are ignored: the trainer of a running job may be newer than its reader.
    """

    model_config = ConfigDict(extra="ignore")

    attempt: int
    """Number of the attempt being reported."""
    epoch: int = 0
    """Fencing epoch of the attempt."""
    stage: Stage
    stage_seconds: float = 0.0
    """Time spent in this stage so far."""
    step: int = 0
    """Steps of the job completed so far."""
    total_steps: int = 0
    """The job's target step."""
    started_from_step: int | None = None
    """Step of the checkpoint it resumed from, 0 for a fresh start, None until known."""
    seconds_per_step: float = 0.0
    """Median over recent steps."""
    seconds_by_stage: dict[str, float] = {}
    """What recent steps spent their time waiting for (medians); the rest is `other`."""
    metrics: Annotated[list[Metric], Field(max_length=64)] = []
    """Latest values, such as reward_mean."""
    checkpoint: CheckpointRef | None = None
    """Newest complete checkpoint."""
    best_step: int | None = None
    """Step of the best checkpoint that is kept."""
    backup_step: int | None = None
    """Step of this attempt's newest complete backup."""
    backup_failure: str = ""
    """Why the latest backup failed; empty if it succeeded."""
    skipped_checkpoints: Annotated[list[SkippedCheckpoint], Field(max_length=32)] = []
    """Checkpoints that could not be used, and why."""
    in_place: Annotated[list[str], Field(max_length=16)] = []
    """Replacements made without ending the attempt, each as `Cause: what happened`."""
    pinned: dict[str, str] = {}
    """What Auto chose in this attempt: precision, attention."""
    save_seconds: float = 0.0
    """Duration of the last save; determines the grace period of the next cluster's pods."""
    failure: Failure | None = None
    """Set before the driver exits with a non-zero code."""
    time: str = ""
    """When this was written (RFC 3339)."""
