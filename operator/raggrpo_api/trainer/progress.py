"""`Progress`: response of the trainer to GET /progress.

The image is untrusted: values are limited, and text is sanitized when parsed.
"""

import math
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, StringConstraints

from raggrpo_api.fields.base import ApiModel, Count, Duration
from raggrpo_api.fields.text import Message, ShortText

from .learning import Streak

MAX_CHANGES: Final = 64
"""Maximum changes listed in a segment."""
MAX_SIZE: Final = 2.0**50
"""Maximum of a reported memory usage in bytes."""
MAX_SEGMENTS: Final = 16
"""Maximum segments in progress and status: the newest."""


class Stage(StrEnum):
    """Stage of an attempt."""

    CONNECTING = "Connecting"
    LOADING_MODEL = "LoadingModel"
    READING_DATA = "ReadingData"
    """The attempt waits for prompts and digests of files, which it reads as the model loads."""
    STARTING_ROLLOUT = "StartingRollout"
    WARMING_RETRIEVAL = "WarmingRetrieval"
    FIRST_STEP = "FirstStep"
    TRAINING = "Training"
    CHECKPOINTING = "Checkpointing"
    VALIDATING = "Validating"
    EXPORTING = "Exporting"
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    """A retrieval or reward service is down; the interrupted stage resumes afterwards."""
    FINISHED = "Finished"


StageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,32}$")]


class CheckpointRef(ApiModel):
    """A complete checkpoint."""

    step: Count
    """Completed steps."""
    path: Message
    """Folder."""
    time: ShortText = ""
    """Time of completion (RFC 3339)."""
    world_size: Count = 0
    """Number of ranks that wrote the checkpoint."""


class Segment(ApiModel):
    """Steps trained after a change of values that checkpoints depend on."""

    first_step: Count
    """First step trained with the changed values."""
    changes: Annotated[list[ShortText], Field(max_length=MAX_CHANGES)] = []
    """Changed values, each as `path: old → new`."""
    from_checkpoint: Message = ""
    """Checkpoint of another job that the segment starts from (training.startFrom)."""


class SkippedCheckpoint(ApiModel):
    """A checkpoint that the attempt did not resume from."""

    path: Message
    reason: ShortText


class Metric(ApiModel):
    """A metric; the value is text, as in Kubeflow's trainer status."""

    name: Annotated[ShortText, Field(max_length=64)]
    value: Annotated[ShortText, Field(max_length=64)]

    @property
    def number(self) -> float | None:
        """The value as a number, or None if it is other text or NaN."""
        try:
            value = float(self.value)
        except ValueError:
            return None
        return None if math.isnan(value) else value

    @property
    def size(self) -> float:
        """The value as a size in bytes, or 0 if it is not a number from 0 to MAX_SIZE."""
        value = self.number
        return value if value is not None and 0 <= value <= MAX_SIZE else 0.0


class EndpointOutage(ApiModel):
    """A service that the attempt is waiting for."""

    name: Annotated[ShortText, Field(max_length=128)]
    """`endpoint NAME`, or `reward Http URL`."""
    since: Annotated[ShortText, Field(max_length=64)] = ""
    """Time of the first failed call (RFC 3339)."""
    cause: ShortText = ""
    """Error of the first failed call."""


class Failure(ApiModel):
    """Why the attempt is ending."""

    exit_code: Annotated[int, Field(ge=-255, le=255)]
    message: Message
    short_of: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{0,32}$")] = ""
    """Memory that ran out (a `Shortage`), or ""."""


class Progress(ApiModel):
    """Progress of an attempt; readers must check `attempt` first.

    Unknown fields are ignored, because the trainer may be newer than the reader.
    """

    model_config = ConfigDict(extra="ignore")

    attempt: Count
    """Number of the attempt."""
    epoch: Count = 0
    """Fencing epoch of the attempt."""
    stage: Stage
    stage_seconds: Duration = 0.0
    """Time since the start of the stage, in seconds."""
    step: Count = 0
    """Completed steps of the job."""
    total_steps: Count = 0
    """Target step of the job."""
    started_from_step: Count | None = None
    """Step of the checkpoint that the attempt resumed from; 0: no checkpoint; None: unknown yet."""
    seconds_per_step: Duration = 0.0
    """Median step time in seconds."""
    seconds_by_stage: Annotated[dict[StageName, Duration], Field(max_length=16)] = {}
    """Median time per stage of a step, in seconds; `other` is the remaining step time."""
    tokens_by_stage: Annotated[dict[StageName, Count], Field(max_length=16)] = {}
    """Median tokens per step that a stage generates or trains on, for stages that scale with
    them."""
    streaks: Annotated[list[Streak], Field(max_length=16)] = []
    """Signs in the newest steps that the run learns nothing."""
    metrics: Annotated[list[Metric], Field(max_length=64)] = []
    """Latest metrics, such as reward_mean."""
    checkpoint: CheckpointRef | None = None
    """Newest complete checkpoint."""
    best_step: Count | None = None
    """Step of the best retained checkpoint."""
    best_score: Annotated[ShortText, Field(max_length=64)] = ""
    """Metric and score of the best checkpoint: `ValidationExactMatch 0.8125`."""
    backup_step: Count | None = None
    """Step of the newest complete backup of this attempt."""
    backup_failure: Message = ""
    """Why the latest backup failed, or ""."""
    skipped_checkpoints: Annotated[list[SkippedCheckpoint], Field(max_length=32)] = []
    """Checkpoints that could not be used, with reasons."""
    segments: Annotated[list[Segment], Field(max_length=MAX_SEGMENTS)] = []
    """Segments that a change of values started, oldest first."""
    in_place: Annotated[list[ShortText], Field(max_length=16)] = []
    """In-place recoveries, each as `Cause: message`."""
    pinned: Annotated[
        dict[ShortText, Annotated[ShortText, Field(max_length=32)]], Field(max_length=16)
    ] = {}
    """Choices of Auto in this attempt: precision, attention."""
    save_seconds: Duration = 0.0
    """Duration of the last save in seconds; determines the grace period of the next cluster."""
    waiting_for: Annotated[list[EndpointOutage], Field(max_length=16)] = []
    """Services that the attempt is waiting for."""
    waited_seconds: Duration = 0.0
    """Total time that this attempt has waited for services, in seconds."""
    failure: Failure | None = None
    """Set before the driver exits with a nonzero code."""
    time: ShortText = ""
    """Time of this report (RFC 3339)."""
