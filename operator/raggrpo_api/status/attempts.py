"""Records of a job's attempts, and counters over all of them."""

from dataclasses import field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import AttemptNumber, ClusterNumber, Time, api_dataclass
from raggrpo_api.fields.text import ShortText

from .cause import Cause


class Tier(StrEnum):
    """How an attempt was begun."""

    FIRST = "First"
    WARM_CLUSTER = "WarmCluster"
    NEW_CLUSTER = "NewCluster"


@api_dataclass
class AttemptRecord:
    """One finished or running attempt."""

    number: AttemptNumber
    tier: Tier = Tier.FIRST
    cluster: ClusterNumber = ClusterNumber(1)
    cause: Cause | None = None
    """Why it ended; none while it runs."""
    message: Annotated[str, Field(max_length=1024)] = ""
    from_step: int | None = None
    to_step: int = 0
    lost_steps: int = 0
    """Steps done that the next attempt had to repeat."""
    started: Time = None
    seconds: int = 0
    waiting_seconds: int = 0
    """Time it waited for services that were down."""
    mitigation: str = ""
    config_hash: str = ""
    skipped_checkpoints: Annotated[list[ShortText], Field(max_length=16)] = field(
        default_factory=list
    )
    in_place: Annotated[list[ShortText], Field(max_length=16)] = field(default_factory=list)
    """Recoveries that did not end the attempt, as `Cause: what happened`."""


@api_dataclass
class RestartCounts:
    """Failures, all of them and since the last new checkpoint."""

    total: int = 0
    since_progress: int = 0
    by_cause: dict[str, int] = field(default_factory=dict)
    lost_steps: int = 0
    """Steps of all attempts that were done and had to be repeated."""
