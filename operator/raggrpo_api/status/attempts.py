"""Attempts of a job and restart counts."""

from dataclasses import field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import AttemptNumber, ClusterNumber, Time, WholeSeconds, api_dataclass
from raggrpo_api.fields.text import Message, ShortText

from .cause import Cause


class Tier(StrEnum):
    """Recovery tier: how an attempt was started."""

    FIRST = "First"
    WARM_CLUSTER = "WarmCluster"
    NEW_CLUSTER = "NewCluster"


@api_dataclass
class AttemptRecord:
    """A running or ended attempt."""

    number: AttemptNumber
    tier: Tier = Tier.FIRST
    cluster: ClusterNumber = ClusterNumber(1)
    cause: Cause | None = None
    """Why the attempt ended; null while it is running."""
    message: Annotated[str, Field(max_length=1024)] = ""
    from_step: int | None = None
    to_step: int = 0
    lost_steps: int = 0
    """Completed steps that the next attempt had to repeat."""
    started: Time = None
    seconds: WholeSeconds = 0
    waiting_seconds: WholeSeconds = 0
    """Seconds that the attempt waited for unavailable services."""
    mitigation: Message = ""
    config_hash: ShortText = ""
    skipped_checkpoints: Annotated[list[ShortText], Field(max_length=16)] = field(
        default_factory=list
    )
    in_place: Annotated[list[ShortText], Field(max_length=16)] = field(default_factory=list)
    """In-place recoveries, each as `Cause: message`."""


@api_dataclass
class RestartCounts:
    """Numbers of failures, in total and since the last new checkpoint."""

    total: int = 0
    since_progress: int = 0
    by_cause: Annotated[dict[ShortText, int], Field(max_length=64)] = field(default_factory=dict)
    lost_steps: int = 0
    """Lost steps of all attempts."""
