"""`JobStatus`: the whole `status` of a job, and its JSON.

Conditions are authoritative; `phase` is derived from them for display. The operator edits a status
with `dataclasses.replace` and keeps no other state between two rounds.
"""

from dataclasses import field
from typing import Annotated, Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_serializer,
    model_validator,
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
from raggrpo_api.trainer.progress import MAX_SEGMENTS, CheckpointRef, Metric, Segment
from raggrpo_api.trainer.staging import MAX_SOURCES, StagedSource

from .attempts import AttemptRecord, RestartCounts
from .conditions import Condition, JobWarning, Phase
from .limits import require_within_limits
from .restart_state import RestartState
from .sizing import Sizing


def _fallback(value: Any) -> WrapValidator:
    """Return a validator that replaces an invalid stored value, such as one beyond the limits.

    An earlier release may have stored such a value, and a job whose status cannot be parsed could
    not be suspended.
    """

    def read(stored: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(stored)
        except ValidationError:
            return value

    return WrapValidator(read)


RatioText = Annotated[str, StringConstraints(pattern=r"^([01]\.[0-9]{2})?$"), _fallback("")]
"""A ratio from 0.00 to 1.99, or "" if it is unknown."""


@api_dataclass
class ProgressStatus:
    """Progress for display (field names as in Kubeflow's trainer status)."""

    step: int = 0
    total_steps: int = 0
    step_of_total: str = ""
    """Column of kubectl, such as `120/400`."""
    progress_percentage: int = 0
    estimated_remaining_seconds: int | None = None
    stage: ShortText = ""
    seconds_per_step: float = 0.0
    metrics: Annotated[list[Metric], Field(max_length=64)] = field(default_factory=list)
    last_updated_time: ShortText = ""


@api_dataclass
class PreflightStatus:
    """Checks and facts of the last preflight."""

    spec_hash: str = ""
    """Hash of the spec fields that preflight depends on; a change repeats preflight."""
    checks: Annotated[list[Check], Field(max_length=32)] = field(default_factory=list)
    facts: Annotated[Facts, _fallback(Facts())] = Facts()

    @property
    def known_facts(self) -> Facts | None:
        """The facts, or None before preflight has reported them."""
        return self.facts if self.facts.parameters else None


@api_dataclass
class StagingStatus:
    """Models and data that were downloaded before preflight."""

    request_hash: str = ""
    """Hash of the request; a change repeats staging."""
    urls: Annotated[list[Message], Field(max_length=MAX_SOURCES), _fallback([])] = field(
        default_factory=list
    )
    """URL of each source."""
    sources: Annotated[list[StagedSource], Field(max_length=MAX_SOURCES), _fallback([])] = field(
        default_factory=list
    )


@api_dataclass
class PushStatus:
    """Upload of the results after the job is complete."""

    request_hash: str = ""
    """Hash of target, last step and retry annotation; a change repeats the push."""
    failed_tries: int = 0
    out_of_memory_kills: int = 0
    """Failed tries whose pod ran out of memory; each doubles the memory of the next one."""
    next_try_time: Time = None
    url: Message = ""
    """Location of the newest uploaded results."""
    revision: ShortText = ""
    """Commit or digest, if the target has one."""
    bytes: int = 0


@api_dataclass
class ClusterStatus:
    """The current Ray cluster."""

    name: str = ""
    number: ClusterNumber = ClusterNumber(0)


@dataclass(frozen=True, kw_only=True, config=DATACLASS_CONFIG | {"extra": "ignore"})
class Pinned:
    """Values that the first attempt resolved and later attempts reuse.

    Unknown keys from other releases are ignored.
    """

    image: Message = ""
    image_id: Message = ""
    """Image of the first attempt's Ray head: `name@sha256:…`, or a digest only."""
    ray_version: ShortText = ""
    precision: ShortText = ""
    attention: ShortText = ""
    start_path: Message = ""
    """Checkpoint folder of the job named by training.startFrom, in this job's pods."""

    @model_serializer(mode="wrap")
    def _known(self, serialize: SerializerFunctionWrapHandler) -> dict[str, str]:
        return {name: value for name, value in serialize(self).items() if value}


@api_dataclass
class JobStatus:
    """State of the job as last observed by the operator."""

    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    preset: ShortText = ""
    """Column of kubectl: preset in use."""
    conditions: Annotated[list[Condition], Field(max_length=32)] = field(default_factory=list)
    warnings: Annotated[list[JobWarning], Field(max_length=32)] = field(default_factory=list)
    warning_count: int = 0
    """Column of kubectl: number of warnings, including those not listed."""
    progress: ProgressStatus = ProgressStatus()
    checkpoint: Annotated[CheckpointRef | None, _fallback(None)] = None
    best_step: int | None = None
    best_score: Annotated[str, Field(max_length=64)] = ""
    """Metric and score of the best checkpoint: `ValidationExactMatch 0.8125`."""
    attempt: AttemptNumber = AttemptNumber(0)
    """Number of the newest attempt, written before its submission."""
    segments: Annotated[list[Segment], Field(max_length=MAX_SEGMENTS), _fallback([])] = field(
        default_factory=list
    )
    """Segments that a change of values between two attempts started; empty: values never
    changed."""
    restarts: RestartCounts = RestartCounts()
    attempts: Annotated[list[AttemptRecord], Field(max_length=10)] = field(default_factory=list)
    sizing: Sizing = Sizing()
    effective_training_time_ratio: RatioText = ""
    """Share of time spent on retained steps, excluding suspension, queues and outages: `0.93`."""
    waiting_time_ratio: RatioText = ""
    """Share of time spent waiting for services, excluding suspension and queues: `0.02`."""
    staging: StagingStatus = StagingStatus()
    push: PushStatus = PushStatus()
    preflight: PreflightStatus = PreflightStatus()
    pinned: Annotated[
        Pinned, WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}})
    ] = Pinned()
    """Image, digest, Ray version, precision and attention, resolved once for all attempts."""
    cluster: ClusterStatus = ClusterStatus()
    restart_state: RestartState = RestartState()
    config_hash: str = ""
    resume_hash: str = ""
    retry: ShortText = ""
    """Last processed value of the annotation raggrpo.io/retry."""
    start_time: Time = None
    completion_time: Time = None

    @model_validator(mode="before")
    @classmethod
    def _limited(cls, wire: Any) -> Any:
        require_within_limits(wire)
        return wire

    @property
    def unlisted_warnings(self) -> int:
        """Number of warnings that are not listed."""
        return max(0, self.warning_count - len(self.warnings))

    @property
    def has_earlier_best(self) -> bool:
        """Whether the best checkpoint is an earlier one than the newest step."""
        return self.best_step not in (None, self.progress.step)

    @property
    def ray_version(self) -> str:
        """Ray version of the attempts; "" before the first attempt."""
        version = self.pinned.ray_version or self.preflight.facts.ray_version
        return version if self.attempt else ""


_STATUS = TypeAdapter(JobStatus)


def status_from_json(raw: Any) -> JobStatus:
    """Return the status from JSON. Raises ValidationError."""
    return _STATUS.validate_python(raw)


def status_to_json(status: JobStatus) -> dict[str, Any]:
    """Return the complete status as JSON."""
    values: dict[str, Any] = _STATUS.dump_python(status, mode="json", by_alias=True)
    return values


def sparse_status(status: JobStatus) -> dict[str, Any]:
    """Return the status as JSON without nulls, and without zeros and empty values by default.

    It parses to the same status. The API server rejects nulls, and `kubectl describe` would list
    every zero.
    """
    specified = _STATUS.dump_python(status, mode="json", by_alias=True, exclude_defaults=True)
    sparse: dict[str, Any] = _sparse(status_to_json(status), specified)
    return sparse


def _sparse(value: Any, specified: Any) -> Any:
    """Return `value` without keys that are null, or empty and missing in `specified`."""
    if isinstance(value, dict):
        specified = specified or {}
        pairs = {name: _sparse(each, specified.get(name)) for name, each in value.items()}
        return {
            name: each
            for name, each in pairs.items()
            if each or (name in specified and each is not None)
        }
    if isinstance(value, list) and specified:
        return [_sparse(*pair) for pair in zip(value, specified, strict=True)]
    return value
