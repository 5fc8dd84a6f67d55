"""`Observed`: an immutable snapshot of a job's objects, made by a runtime for `decide`."""

from dataclasses import dataclass
from enum import StrEnum

from raggrpo_api.fields.base import AttemptNumber, ClusterNumber
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_api.trainer.progress import Progress
from raggrpo_api.trainer.staging import PushOutcome, StagingProgress, StagingResult


class SubmissionStatus(StrEnum):
    """Status of a submission in Ray's Jobs API."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def is_terminal(self) -> bool:
        """Whether the driver has exited."""
        return self in (self.SUCCEEDED, self.FAILED, self.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObserved:
    """State of a pod or process that runs once."""

    problem: str = ""
    """Why it ended without a result; "" if it did not."""
    cannot_start: bool = False
    """Whether the pod cannot start until a user fixes the cause described by `problem`."""
    is_out_of_memory: bool = False
    """Whether `problem` is that the pod reached its memory limit."""
    waiting_for: str = ""
    """Why it has not started, for example because its image cannot be pulled."""
    waiting_reason: ConditionReason = ConditionReason.PODS_NOT_READY
    """Condition reason for `waiting_for`; unused if `waiting_for` is empty."""


@dataclass(frozen=True, slots=True)
class StagingObserved(PodObserved):
    """State of the staging pod or process."""

    request_hash: str
    result: StagingResult | None = None
    """Result of staging; None while staging is running."""
    progress: StagingProgress | None = None
    """Progress; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class PushObserved(PodObserved):
    """State of the push pod or process."""

    request_hash: str
    result: PushOutcome | None = None
    """Outcome of the push; None while it is running."""
    progress: StagingProgress | None = None
    """Progress; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class PreflightObserved(PodObserved):
    """State of the preflight pod or process."""

    spec_hash: str
    result: PreflightResult | None = None
    """Result of preflight; None while preflight is running."""


@dataclass(frozen=True, slots=True)
class ClusterObserved:
    """State of one Ray cluster."""

    number: ClusterNumber
    is_ready: bool = False
    is_lost: bool = False
    """Whether the head and all processes on it are gone."""
    may_return: bool = False
    """Whether KubeRay restarts the lost head, which nodes, ranks and engines then survive."""
    may_save: bool = False
    """Whether the lost head is still terminating, so that its driver may be saving."""
    is_queued: bool = False
    """Whether a queueing system has suspended the cluster and will resume it."""
    cause: Cause | None = None
    """Cause of a loss or failed start, as reported by pods or processes, or None."""
    short_of: Shortage | None = None
    """The memory that ran out, or None if memory is not the cause or unknown."""
    node: str = ""
    """Node to which the loss is attributed, or "" if the loss is not attributed to a node."""
    image_ids: tuple[str, ...] = ()
    """Distinct image IDs that the cluster's pods have reported, starting with the head's."""
    ray_version: str = ""
    """Ray version that the head reported before an attempt started, or "" if unknown."""
    message: str = ""
    waiting_reason: ConditionReason = ConditionReason.PODS_NOT_READY
    """Condition reason for pods that do not start; unused if the cluster is ready or lost."""


@dataclass(frozen=True, slots=True)
class AttemptObserved:
    """The newest attempt, as reported by Ray's Jobs API or by the driver process of a local run."""

    number: AttemptNumber
    status: SubmissionStatus
    exit_code: int | None = None
    message: str = ""
    is_out_of_memory: bool = False
    """Whether Ray killed the driver because the head was low on memory."""


@dataclass(frozen=True, slots=True)
class ServiceObserved:
    """State of a managed retriever or of the container of an agent."""

    name: str
    address: str
    """Base URL."""
    is_ready: bool = False
    problem: str = ""
    has_ended: bool = False
    """Whether the service has exited and must be restarted."""
    cause: Cause | None = None
    """Cause that a restart of the service cannot fix, or None if there is none."""
    reason: ConditionReason | None = None
    """Condition reason for `problem`; None: the service is not ready."""
    spec_hash: str = ""
    """Hash of the spec that the service was started with; "" for retrievers."""
    restarts: int = 0
    """Restarts of the containers of its pods."""


@dataclass(frozen=True, slots=True)
class StartObserved:
    """Checkpoints of the job that this job starts from; exactly one field is set."""

    path: str = ""
    """Their folder in this job's pods."""
    problem: str = ""
    """Why the folder is unknown."""


@dataclass(frozen=True, slots=True)
class DeviceObserved:
    """The smallest GPU that the job's pods may get, according to node labels."""

    memory_mib: int
    compute_major: int
    """Major compute capability; 0 if unknown."""
    product: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a runtime observed for one round. An object that does not exist is None."""

    staging: StagingObserved | None = None
    preflight: PreflightObserved | None = None
    push: PushObserved | None = None
    cluster: ClusterObserved | None = None
    attempt: AttemptObserved | None = None
    progress: Progress | None = None
    """Response of GET /progress; None if it could not be read."""
    retrievers: tuple[ServiceObserved, ...] = ()
    agent: ServiceObserved | None = None
    has_services: bool = True
    """Whether all Services of the gateway, the agent and the retrievers exist."""
    device: DeviceObserved | None = None
    """Set once preflight has a result; None if the device is unknown."""
    start: StartObserved | None = None
    """Set if training.startFrom names a job whose path is not pinned yet."""
    is_head_reachable: bool = True
    missing_key: str = ""
    """Why the key for the head's token is missing; "" if it is not."""
    can_replace_cluster: bool = True
    """Whether a new cluster can be created; False while no installation key is mounted."""
    default_image: str = ""
    """Image of jobs without `spec.image`; "" if local runs use the installed packages."""
    in_pods: bool = True
    """Whether the job runs in pods; False for local runs, which use folders instead of volumes."""
    interrupted_by: str = ""
    """Signal that suspended a local run, such as SIGINT, or ""."""
    delay_seconds: float = 0.0
    """Seconds by which other jobs delayed the start of the round."""
    evidence_seconds: float = 0.0
    """Seconds to wait for pod statuses to explain the exit of a driver; 0 to not wait."""

    @property
    def is_queued(self) -> bool:
        """Whether the job's Ray cluster is waiting in a queue."""
        return self.cluster is not None and self.cluster.is_queued
