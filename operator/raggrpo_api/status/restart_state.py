"""`status.restartState`: state of `decide` between two rounds; not an interface for users."""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Annotated, Any, get_args

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from raggrpo_api.fields.base import FractionalSeconds, Time, WholeSeconds, api_dataclass
from raggrpo_api.fields.text import Message

from .cause import Cause


@api_dataclass
class Baseline:
    """Baseline of an attempt, taken after its first steps."""

    step: int = 0
    """Step at which the baseline was taken; 0: not yet."""
    seconds: FractionalSeconds = 0.0
    """Median step time in seconds."""
    seconds_by_stage: dict[str, FractionalSeconds] = field(default_factory=dict)
    tokens_by_stage: dict[str, int] = field(default_factory=dict)
    """Median tokens per step of the stages whose duration grows with them."""
    host_memory: int = 0
    """Memory of the head pod in bytes."""
    rank_memory: int = 0
    """Memory of the largest trainer pod in bytes."""


@api_dataclass
class RetryState:
    """Intent to stop the running attempt, and delay of the next one."""

    next_retry_time: Time = None
    intent: Cause | None = None
    """Why the running attempt is being stopped; written before the action."""
    warm_failures_in_a_row: int = 0
    preflight_losses: int = 0
    """Consecutive stagings or preflights without a result."""
    ends_in_a_row: int = 0
    """Consecutive attempts without a new checkpoint, including those not counted as failures;
    determines the delay."""
    saved_step: int = 0
    """Step of the newest checkpoint of ended attempts; a newer checkpoint counts as progress."""


@api_dataclass
class Remedies:
    """Changes of the next attempts in response to failures."""

    mitigations: Annotated[list[str], Field(max_length=16)] = field(default_factory=list)
    skipped_steps: Annotated[list[int], Field(max_length=64)] = field(default_factory=list)
    """Steps whose batch is skipped because its loss was not finite twice."""
    rejected_checkpoints: Annotated[list[Message], Field(max_length=64)] = field(
        default_factory=list
    )
    """Checkpoint folders that no attempt may resume from."""
    failures_by_node: Annotated[dict[str, int], Field(max_length=64)] = field(default_factory=dict)
    """Failures by node, reduced over time and with progress."""
    node_failed_at: Time = None
    """Time of the last failure attributed to a node; counts decrease by one per day."""
    node_failed_step: int = 0
    """Step of the newest checkpoint at nodeFailedAt; counts decrease by one per ten checkpoints."""


@api_dataclass
class SpentTime:
    """Time accounting of the job."""

    active_seconds: WholeSeconds = 0
    """Total duration of all ended attempts."""
    down_seconds: WholeSeconds = 0
    """Time between attempts, excluding suspension and queues."""
    waiting_seconds: WholeSeconds = 0
    """Time that ended attempts waited for unavailable services."""
    kept_seconds: float = 0.0
    """Time that ended attempts spent on retained steps."""
    counted_since: Time = None
    """Start of the current period that counts toward activeDeadlineSeconds; null while suspended or
    queued."""
    counted_seconds: WholeSeconds = 0
    """Seconds counted in earlier periods."""


@api_dataclass
class LaunchState:
    """Progress of starting the next attempt."""

    cluster_since: Time = None
    """Time at which the newest attempt was recorded; start of the provisioning deadline."""
    tries: int = 0
    """Cluster creations and submissions for the newest attempt, counted before each request."""
    waiting_since: Time = None
    """Time of the last start of preflight or managed retrievers, or of a preflight outage."""


@api_dataclass
class WatchState:
    """Observation times, and timers of stage and outage."""

    looked: Time = None
    """Time of the last reconcile of the running job, rounded to half a minute."""
    watched_since: Time = None
    """Start of uninterrupted observation; deadlines do not count earlier time."""
    unread_since: Time = None
    """First failed read of /progress since the last successful one."""
    stage: str = ""
    step_seen: int = 0
    still_since: Time = None
    """Time of the last change of stage or step, as read from /progress."""
    outage_since: Time = None
    """Start of the current outage."""
    outage_step: int = 0
    """Completed steps at the start of the outage; the next completed step resets the timer."""
    outage_seconds: FractionalSeconds = 0.0
    """Seconds of earlier outages since the last completed step."""
    reads_since_step: int = 0
    """Successful reads of /progress since the step last changed, at most 2."""


Group = RetryState | Remedies | SpentTime | LaunchState | WatchState


@api_dataclass
class RestartState:
    """State of `decide` between two rounds."""

    # Grouped in Python; flat in JSON and in the CRD.
    retry: RetryState = RetryState()
    remedies: Remedies = Remedies()
    spent: SpentTime = SpentTime()
    launch: LaunchState = LaunchState()
    watch: WatchState = WatchState()
    slowest_save_seconds: FractionalSeconds = 0.0
    """Longest save of all attempts; determines the grace period of the next cluster's pods."""
    baseline: Baseline = Baseline()
    """Baseline of the running attempt."""

    def with_group(self, group: Group) -> "RestartState":
        """Return the state with the group of the same type replaced."""
        changed: dict[str, Any] = {
            name: group for name, kind in _GROUPS.items() if isinstance(group, kind)
        }
        return replace(self, **changed)

    @model_validator(mode="before")
    @classmethod
    def _grouped(cls, wire: Any) -> Any:
        if not isinstance(wire, dict):  # constructed in Python
            return wire
        grouped = {key: value for key, value in wire.items() if key not in _GROUP_OF}
        for key in wire.keys() & _GROUP_OF.keys():
            grouped.setdefault(_GROUP_OF[key], {})[key] = wire[key]
        return grouped

    @model_serializer(mode="wrap")
    def _flat(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _ungrouped(serialize(self))

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        fields_of = {
            name: handler.resolve_ref_schema(value)["properties"] if name in _GROUPS else value
            for name, value in schema["properties"].items()
        }
        return schema | {"properties": _ungrouped(fields_of)}


_GROUPS: dict[str, Any] = {
    each.name: each.type for each in fields(RestartState) if each.type in get_args(Group)
}


_GROUP_OF = {to_camel(each.name): name for name in _GROUPS for each in fields(_GROUPS[name])}
"""Group that contains a field, by the field's JSON name."""


def _ungrouped(grouped: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in grouped.items():
        flat |= value if name in _GROUPS else {name: value}
    return flat
