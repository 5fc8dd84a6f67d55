"""`Progress`: what the trainer reports at GET /progress, at most 64 KiB.

The image that answers is the tenant's: every value has a range, and texts are cleaned on reading.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from raggrpo_api.fields.base import ApiModel, Count, Duration
from raggrpo_api.fields.text import Message, ShortText


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
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    """A retrieval or reward service is down; the stage it interrupted goes on afterwards."""
    FINISHED = "Finished"


StageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,32}$")]


class CheckpointRef(ApiModel):
    """A complete checkpoint."""

    step: Count
    """Steps done when it was saved."""
    path: Message
    """Its folder."""
    time: ShortText = ""
    """When it became complete (RFC 3339)."""
    world_size: Count = 0
    """Trainer ranks that wrote it."""


class SkippedCheckpoint(ApiModel):
    """A checkpoint that was not used for resuming."""

    path: Message
    reason: ShortText


class Metric(ApiModel):
    """A named number, as text (same shape as Kubeflow's trainer status)."""

    name: Annotated[ShortText, Field(max_length=64)]
    value: Annotated[ShortText, Field(max_length=64)]


class EndpointOutage(ApiModel):
    """A service that an attempt waits for."""

    name: Annotated[ShortText, Field(max_length=128)]
    """`endpoint NAME`, or `reward Http URL`."""
    since: Annotated[ShortText, Field(max_length=64)] = ""
    """When it was first found down (RFC 3339)."""
    cause: ShortText = ""
    """What happened to the call that found it down."""


class Failure(ApiModel):
    """Why the attempt is ending, in terms a user can act on."""

    exit_code: Annotated[int, Field(ge=-255, le=255)]
    message: Message
    short_of: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{0,32}$")] = ""
    """Which memory ran out, a `Shortage`; empty: none did."""


class Progress(ApiModel):
    """State of one attempt; readers must check `attempt` before trusting anything else.

    Unknown fields are ignored: the trainer of a running job may be newer than its reader.
    """

    model_config = ConfigDict(extra="ignore")

    attempt: Count
    """Number of the attempt being reported."""
    epoch: Count = 0
    """Fencing epoch of the attempt."""
    stage: Stage
    stage_seconds: Duration = 0.0
    """Time spent in this stage so far."""
    step: Count = 0
    """Steps of the job completed so far."""
    total_steps: Count = 0
    """The job's target step."""
    started_from_step: Count | None = None
    """Step of the checkpoint it resumed from, 0 for a fresh start, None until known."""
    seconds_per_step: Duration = 0.0
    """Median over recent steps."""
    seconds_by_stage: Annotated[dict[StageName, Duration], Field(max_length=16)] = {}
    """What recent steps spent their time waiting for (medians); the rest is `other`."""
    metrics: Annotated[list[Metric], Field(max_length=64)] = []
    """Latest values, such as reward_mean."""
    checkpoint: CheckpointRef | None = None
    """Newest complete checkpoint."""
    best_step: Count | None = None
    """Step of the best checkpoint that is kept."""
    best_score: Annotated[ShortText, Field(max_length=64)] = ""
    """What it was judged by and its score: `ValidationExactMatch 0.8125`."""
    backup_step: Count | None = None
    """Step of this attempt's newest complete backup."""
    backup_failure: Message = ""
    """Why the latest backup failed; empty if it succeeded."""
    skipped_checkpoints: Annotated[list[SkippedCheckpoint], Field(max_length=32)] = []
    """Checkpoints that could not be used, and why."""
    in_place: Annotated[list[ShortText], Field(max_length=16)] = []
    """Replacements made without ending the attempt, each as `Cause: what happened`."""
    pinned: Annotated[
        dict[ShortText, Annotated[ShortText, Field(max_length=32)]], Field(max_length=16)
    ] = {}
    """What Auto chose in this attempt: precision, attention."""
    save_seconds: Duration = 0.0
    """Duration of the last save; determines the grace period of the next cluster's pods."""
    waiting_for: Annotated[list[EndpointOutage], Field(max_length=16)] = []
    """Services that keep the attempt from going on."""
    waited_seconds: Duration = 0.0
    """How long this attempt has waited for services in all."""
    failure: Failure | None = None
    """Set before the driver exits with a non-zero code."""
    time: ShortText = ""
    """When this was written (RFC 3339)."""
