"""`status.restartState`: what `decide` stores between two rounds; not an interface for users."""

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

from raggrpo_api.fields.base import Time, api_dataclass
from raggrpo_api.fields.text import Message

from .cause import Cause


@api_dataclass
class Baseline:
    """The beginning of an attempt, which its later steps are compared with."""

    step: int = 0
    """When it was taken; 0: not yet."""
    seconds: float = 0.0
    """Median step."""
    seconds_by_stage: dict[str, float] = field(default_factory=dict)
    host_memory: int = 0
    """Bytes of the head pod."""
    rank_memory: int = 0
    """Bytes of the trainer pod that held most."""


@api_dataclass
class RetryState:
    """Why the running attempt is being stopped, and what delays the next one."""

    next_retry_time: Time = None
    intent: Cause | None = None
    """Why the running attempt is being stopped; written before it is done."""
    warm_failures_in_a_row: int = 0
    preflight_losses: int = 0
    """Preflights in a row that ended without a result."""
    ends_in_a_row: int = 0
    """Attempts in a row that ended without a new checkpoint, counted or not; sets the delay."""
    saved_step: int = 0
    """Highest checkpoint that attempts which have ended left; one beyond it is progress."""


@api_dataclass
class Remedies:
    """What the next attempts do differently because of the failures so far."""

    mitigations: Annotated[list[str], Field(max_length=16)] = field(default_factory=list)
    skipped_steps: Annotated[list[int], Field(max_length=64)] = field(default_factory=list)
    """Steps whose prompts are left out: their loss was not finite twice."""
    rejected_checkpoints: Annotated[list[Message], Field(max_length=64)] = field(
        default_factory=list
    )
    """Folders that no attempt resumes from again."""
    failures_by_node: Annotated[dict[str, int], Field(max_length=64)] = field(default_factory=dict)
    """How often a pod or its node failed there, less what time and progress have taken off."""
    node_failed_at: Time = None
    """When a failure was last blamed on a node; each day since then takes one off every count."""
    node_failed_step: int = 0
    """Newest checkpoint at that time; every ten more take one off every count."""


@api_dataclass
class SpentTime:
    """Where the job's time went."""

    active_seconds: int = 0
    """Of all ended attempts together."""
    down_seconds: int = 0
    """Between an attempt's end and the next one's begin, unless the job was held back."""
    waiting_seconds: int = 0
    """Of all ended attempts, for services that were down."""
    kept_seconds: float = 0.0
    """Of the ended attempts' steps that were not lost."""
    counted_since: Time = None
    """Since when activeDeadlineSeconds has been counting; none while a user or queue holds back."""
    counted_seconds: int = 0
    """What it had counted before."""


@api_dataclass
class LaunchState:
    """How far the next attempt has come before it runs."""

    cluster_since: Time = None
    """When the newest attempt was recorded; bounds provisioning and submission."""
    tries: int = 0
    """How often its cluster or its submission was asked for: every time is written down first."""
    waiting_since: Time = None
    """When preflight or managed retrievers were last started, or preflight found a service down."""


@api_dataclass
class WatchState:
    """When the job was observed, and since when nothing has moved."""

    looked: Time = None
    """Last look at the job while it was under way, to the half minute."""
    watched_since: Time = None
    """Since when no look was missed; deadlines count from here at the earliest."""
    unread_since: Time = None
    """First failed read of /progress since the last one that succeeded."""
    stage: str = ""
    step_seen: int = 0
    still_since: Time = None
    """Since when neither stage nor step has moved, as far as /progress was read."""
    outage_since: Time = None
    """Since when a service that is down has kept the job from going on."""
    outage_step: int = 0
    """Finished steps when the wait began; one more ends its clock."""
    outage_seconds: float = 0.0
    """Waited for services before `outageSince` without finishing that step."""
    reads_since_step: int = 0
    """Successful reads of /progress since the step last moved, counted to 2."""


Group = RetryState | Remedies | SpentTime | LaunchState | WatchState


@api_dataclass
class RestartState:
    """What `decide` must remember between two rounds."""

    # In groups here; flat on the wire and in the CRD, as every release reads and writes it.
    retry: RetryState = RetryState()
    remedies: Remedies = Remedies()
    spent: SpentTime = SpentTime()
    launch: LaunchState = LaunchState()
    watch: WatchState = WatchState()
    slowest_save_seconds: float = 0.0
    """Of all attempts; sizes the grace of the next cluster's pods."""
    baseline: Baseline = Baseline()
    """Of the running attempt."""

    def with_group(self, group: Group) -> "RestartState":
        """Return the state with this group in place of the one of its type."""
        changed: dict[str, Any] = {
            name: group for name, kind in _GROUPS.items() if isinstance(group, kind)
        }
        return replace(self, **changed)

    @model_validator(mode="before")
    @classmethod
    def _grouped(cls, wire: Any) -> Any:
        if not isinstance(wire, dict):  # made in Python
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
"""Name on the wire → the group that holds it."""


def _ungrouped(grouped: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in grouped.items():
        flat |= value if name in _GROUPS else {name: value}
    return flat
