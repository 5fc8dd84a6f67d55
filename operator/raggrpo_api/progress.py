"""`Progress`: what the trainer reports at GET /progress, at most 64 KiB."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .base import ApiModel


class Stage(StrEnum):
    """Where an attempt is (A10)."""

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
    """Why the attempt ends, in words a user can act on."""

    exit_code: int
    message: str


class Progress(ApiModel):
    """State of one attempt; a reader compares `attempt` before believing anything else.

    Unknown fields are ignored: the trainer of a running job may be newer than its reader.
    """

    model_config = ConfigDict(extra="ignore")

    attempt: int
    """Which attempt this is about."""
    epoch: int = 0
    """Fencing epoch of the attempt."""
    stage: Stage
    """What it is doing."""
    stage_seconds: float = 0.0
    """How long it has been doing so."""
    step: int = 0
    """Finished steps of the job."""
    total_steps: int = 0
    """Target of the job."""
    started_from_step: int | None = None
    """Step of the checkpoint it resumed from, 0 for a fresh start; none before it is known."""
    seconds_per_step: float = 0.0
    """Median of the recent steps."""
    seconds_by_stage: dict[str, float] = {}
    """Medians of the recent steps' parts: what each step waited for, and the rest as `other`."""
    metrics: Annotated[list[Metric], Field(max_length=64)] = []
    """Newest values such as reward_mean."""
    checkpoint: CheckpointRef | None = None
    """Newest complete checkpoint."""
    best_step: int | None = None
    """Step of the best kept checkpoint."""
    backup_step: int | None = None
    """Step of the newest complete backup of this attempt (A27)."""
    backup_failure: str = ""
    """Why the newest backup failed; empty when it did not."""
    skipped_checkpoints: Annotated[list[SkippedCheckpoint], Field(max_length=32)] = []
    """Checkpoints that could not be used, and why."""
    in_place: Annotated[list[str], Field(max_length=16)] = []
    """What was replaced without ending the attempt, as `Cause: what happened`."""
    pinned: dict[str, str] = {}
    """What Auto chose in this attempt: precision, attention."""
    save_seconds: float = 0.0
    """Duration of the last save; sizes the grace of the next cluster's pods."""
    failure: Failure | None = None
    """Set before the driver exits with a code other than 0."""
    time: str = ""
    """When this was written (RFC 3339)."""
