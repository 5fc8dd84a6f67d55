"""`status` of a job: conditions are the truth, `phase` is derived from them for people.

The operator edits a status with `dataclasses.replace`. Nothing else is kept between two rounds.
"""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from enum import StrEnum
from typing import Annotated, Any, get_args

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .fields.base import DATACLASS_CONFIG, Time, api_dataclass
from .fields.text import Message, Words
from .trainer.preflight import Check, Facts
from .trainer.progress import CheckpointRef, Metric


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


class Phase(StrEnum):
    """One word for people; decisions read conditions instead."""

    PENDING = "Pending"
    PREFLIGHT = "Preflight"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"


class ConditionType(StrEnum):
    """Conditions, kstatus' three among them."""

    ACCEPTED = "Accepted"
    PREFLIGHT_PASSED = "PreflightPassed"
    RETRIEVER_READY = "RetrieverReady"
    CLUSTER_READY = "ClusterReady"
    PROGRESSING = "Progressing"
    CHECKPOINT_HEALTHY = "CheckpointHealthy"
    RESUME_VERIFIED = "ResumeVerified"
    SLOWING_DOWN = "SlowingDown"
    HOST_MEMORY_GROWING = "HostMemoryGrowing"
    POLICY_MISMATCH = "PolicyMismatch"
    STALLED = "Stalled"
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"
    READY = "Ready"
    RECONCILING = "Reconciling"


class Cause(StrEnum):
    """Why an attempt ended: the closed set that users grep for."""

    CONFIG_ERROR = "ConfigError"
    DATA_ERROR = "DataError"
    PREFLIGHT_FAILED = "PreflightFailed"
    REWARD_CODE_ERROR = "RewardCodeError"
    CUDA_OUT_OF_MEMORY = "CudaOutOfMemory"
    HOST_OUT_OF_MEMORY = "HostOutOfMemory"
    ROLLOUT_ENGINE_LOST = "RolloutEngineLost"
    TRAINER_RANK_LOST = "TrainerRankLost"
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"
    NON_FINITE = "NonFinite"
    POLICY_MISMATCH = "PolicyMismatch"
    RETRIEVAL_UNAVAILABLE = "RetrievalUnavailable"
    ENDPOINT_DOWN = "EndpointDown"
    CHECKPOINT_WRITE_FAILED = "CheckpointWriteFailed"
    VOLUME_FULL = "VolumeFull"
    CHECKPOINT_INCOMPATIBLE = "CheckpointIncompatible"
    CHECKPOINT_PATH_IN_USE = "CheckpointPathInUse"
    STALLED = "Stalled"
    RESUME_MISMATCH = "ResumeMismatch"
    FALSE_SUCCESS = "FalseSuccess"
    PREEMPTED = "Preempted"
    SUPERSEDED = "Superseded"
    SUSPENDED = "Suspended"
    DEGRADED = "Degraded"
    STOPPED = "Stopped"
    IMAGE_CHANGED = "ImageChanged"
    HEAD_LOST = "HeadLost"
    WORKER_LOST = "WorkerLost"
    NODE_LOST = "NodeLost"
    RANKS_STUCK = "RanksStuck"
    START_FAILED = "StartFailed"
    UNSCHEDULABLE = "Unschedulable"
    PROGRESS_UNREACHABLE = "ProgressUnreachable"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    RESTART_BUDGET_EXHAUSTED = "RestartBudgetExhausted"
    PROGRAM_ERROR = "ProgramError"
    SUCCEEDED = "Succeeded"


class Tier(StrEnum):
    """How an attempt was begun."""

    FIRST = "First"
    WARM_CLUSTER = "WarmCluster"
    NEW_CLUSTER = "NewCluster"


@api_dataclass
class Condition:
    """A Kubernetes condition."""

    type: ConditionType
    status: str
    """True, False or Unknown."""
    reason: str
    """CamelCase, from a closed set."""
    message: Annotated[str, Field(max_length=1024)] = ""
    last_transition_time: Time = None
    observed_generation: int = 0


@api_dataclass
class JobWarning:
    """Something that does not stop the job but is probably not what its author wants."""

    path: Annotated[Words, Field(max_length=128)]
    """Field of the specification."""
    reason: Annotated[Words, Field(max_length=64)]
    """CamelCase, from a closed set."""
    message: Annotated[Message, Field(max_length=512)] = ""
    """What is unusual → what to write instead."""


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
    last_updated_time: Words = ""


@api_dataclass
class AttemptRecord:
    """One finished or running attempt."""

    number: int
    tier: Tier = Tier.FIRST
    cluster: int = 1
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
    skipped_checkpoints: Annotated[list[Words], Field(max_length=16)] = field(default_factory=list)
    in_place: Annotated[list[Words], Field(max_length=16)] = field(default_factory=list)
    """Recoveries that did not end the attempt, as `Cause: what happened`."""


@api_dataclass
class RestartCounts:
    """Failures, all of them and since the last new checkpoint."""

    total: int = 0
    since_progress: int = 0
    by_cause: dict[str, int] = field(default_factory=dict)
    lost_steps: int = 0
    """Steps of all attempts that were done and had to be repeated."""


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

    def having(self, group: Group) -> "RestartState":
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


class PodRole(StrEnum):
    """Kinds of pods; also the value of the label raggrpo.io/role."""

    HEAD = "head"
    TRAINER = "trainer"
    ROLLOUT = "rollout"
    RETRIEVER = "retriever"
    PREFLIGHT = "preflight"


@api_dataclass
class SizingTerm:
    """One named part of a sized amount."""

    resource: str
    """memory, shm and gpu of a trainer pod, headMemory, rolloutShm and so on of the others."""
    name: str
    bytes: int
    reason: str


@api_dataclass
class PodSizing:
    """Requests of one kind of pod; memory is the limit too."""

    role: PodRole
    name: str = ""
    """Endpoint of a managed retriever."""
    replicas: int = 1
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    """Size of /dev/shm; empty: none of its own."""
    object_store: int = 0
    """Bytes of Ray's object store, which lies in /dev/shm."""


@api_dataclass
class Sizing:
    """What was sized, with its terms."""

    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    pods: Annotated[list[PodSizing], Field(max_length=16)] = field(default_factory=list)
    """Requests of every kind of pod; the amounts above are those of a trainer pod."""
    terms: Annotated[list[SizingTerm], Field(max_length=64)] = field(default_factory=list)


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
    number: int = 0


@dataclass(frozen=True, kw_only=True, config=DATACLASS_CONFIG | {"extra": "ignore"})
class Pinned:
    """Decided once and kept; unknown keys from other releases are ignored."""

    image: Message = ""
    image_id: Message = ""
    """What the head of the first attempt ran: `name@sha256:…`, or a bare digest."""
    ray_version: Words = ""
    precision: Words = ""
    attention: Words = ""

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
    attempt: int = 0
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
    retry: Words = ""
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
