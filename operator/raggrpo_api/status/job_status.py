"""`JobStatus`: the whole `status` of a job, and its JSON.

Conditions are authoritative; `phase` is derived from them for display. The operator edits a status
with `dataclasses.replace` and keeps no other state between two rounds.
"""

from dataclasses import field
from typing import Annotated, Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_serializer,
)
from pydantic.dataclasses import dataclass

from raggrpo_api.fields.base import (
    DATACLASS_CONFIG,
    AttemptNumber,
    ClusterNumber,
    Time,
    api_dataclass,
)
from raggrpo_api.fields.text import Message, ShortText
from raggrpo_api.trainer.preflight import Check, Facts
from raggrpo_api.trainer.progress import CheckpointRef, Metric

from .attempts import AttemptRecord, RestartCounts
from .conditions import Condition, JobWarning, Phase
from .restart_state import RestartState
from .sizing import Sizing


def _otherwise(value: Any) -> WrapValidator:
    """Read what an earlier release stored of a pod's words as this, if it is beyond today's limits.

    A status that cannot be read would keep its job from being suspended.
    """

    def read(stored: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(stored)
        except ValidationError:
            return value

    return WrapValidator(read)


@api_dataclass
class ProgressStatus:
    """Progress as kubectl shows it (field names as in Kubeflow's trainer status)."""

    step: int = 0
    total_steps: int = 0
    step_of_total: str = ""
    """`120/400`, as kubectl's column shows it: a column cannot join two fields."""
    progress_percentage: int = 0
    estimated_remaining_seconds: int | None = None
    stage: str = ""
    seconds_per_step: float = 0.0
    metrics: Annotated[list[Metric], Field(max_length=64)] = field(default_factory=list)
    last_updated_time: ShortText = ""


@api_dataclass
class PreflightStatus:
    """Named checks and facts of the last preflight."""

    spec_hash: str = ""
    """Hash of the part of the spec that it judged; another one repeats it."""
    checks: Annotated[list[Check], Field(max_length=32)] = field(default_factory=list)
    facts: Annotated[Facts, _otherwise(Facts())] = Facts()

    @property
    def known_facts(self) -> Facts | None:
        """The facts, None before any were read."""
        return self.facts if self.facts.parameters else None


@api_dataclass
class ClusterStatus:
    """The current Ray cluster."""

    name: str = ""
    number: ClusterNumber = ClusterNumber(0)


@dataclass(frozen=True, kw_only=True, config=DATACLASS_CONFIG | {"extra": "ignore"})
class Pinned:
    """Decided once and kept; unknown keys from other releases are ignored."""

    image: Message = ""
    image_id: Message = ""
    """What the head of the first attempt ran: `name@sha256:…`, or a bare digest."""
    ray_version: ShortText = ""
    precision: ShortText = ""
    attention: ShortText = ""

    @model_serializer(mode="wrap")
    def _known(self, serialize: SerializerFunctionWrapHandler) -> dict[str, str]:
        return {name: value for name, value in serialize(self).items() if value}


@api_dataclass
class JobStatus:
    """Everything `decide` needs after a restart of the operator is here or can be observed."""

    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    preset: str = ""
    """The job's, as kubectl's column shows it: the spec may leave it to the default."""
    conditions: Annotated[list[Condition], Field(max_length=32)] = field(default_factory=list)
    warnings: Annotated[list[JobWarning], Field(max_length=32)] = field(default_factory=list)
    warning_count: int = 0
    """How many warnings there are, as kubectl's column shows it; may exceed those listed."""
    progress: ProgressStatus = ProgressStatus()
    checkpoint: Annotated[CheckpointRef | None, _otherwise(None)] = None
    best_step: int | None = None
    best_score: Annotated[str, Field(max_length=64)] = ""
    """What the best checkpoint was judged by, and its score: `ValidationExactMatch 0.8125`."""
    attempt: AttemptNumber = AttemptNumber(0)
    """Number of the newest attempt; written before it is submitted."""
    restarts: RestartCounts = RestartCounts()
    attempts: Annotated[list[AttemptRecord], Field(max_length=10)] = field(default_factory=list)
    sizing: Sizing = Sizing()
    effective_training_time_ratio: str = ""
    """Share of the time, but for suspension, queue, outages, that went into kept steps: `0.93`."""
    waiting_time_ratio: str = ""
    """Share of the time, but for suspension and queue, spent waiting for services: `0.02`."""
    preflight: PreflightStatus = PreflightStatus()
    pinned: Annotated[
        Pinned, WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}})
    ] = Pinned()
    """Image and its digest, Ray version, precision, attention: decided once, kept."""
    cluster: ClusterStatus = ClusterStatus()
    restart_state: RestartState = RestartState()
    config_hash: str = ""
    resume_hash: str = ""
    retry: ShortText = ""
    """Value of the annotation raggrpo.io/retry that was honoured last."""
    start_time: Time = None
    completion_time: Time = None

    @property
    def unlisted_warnings(self) -> int:
        """How many warnings have no room in the list."""
        return max(0, self.warning_count - len(self.warnings))

    @property
    def ray_version(self) -> str:
        """The Ray version that the attempts so far ran with; empty before the first."""
        began_with = self.pinned.ray_version or self.preflight.facts.ray_version
        return began_with if self.attempt else ""


_STATUS = TypeAdapter(JobStatus)


def status_from_json(raw: Any) -> JobStatus:
    """Return the status that JSON carries; raises ValidationError."""
    return _STATUS.validate_python(raw)


def status_to_json(status: JobStatus, *, with_nulls: bool = True) -> dict[str, Any]:
    """Return the status as JSON; a cluster takes none with nulls."""
    found: dict[str, Any] = _STATUS.dump_python(status, mode="json", by_alias=True)
    return found if with_nulls else _without_nulls(found)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
