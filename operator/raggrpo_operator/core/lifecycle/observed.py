"""`Observed`: a frozen snapshot of what exists, made by a runtime and read by `decide`."""

from dataclasses import dataclass
from enum import StrEnum

from raggrpo_api.fields.base import AttemptNumber, ClusterNumber
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_api.trainer.progress import Progress


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


@dataclass(frozen=True, slots=True)
class PreflightObserved:
    """The preflight process or pod."""

    spec_hash: str
    result: PreflightResult | None = None
    """None while it runs."""
    problem: str = ""
    """Why it exited without a result."""
    waiting_for: str = ""
    """Why it has not started, such as an image that cannot be pulled."""
    waiting_reason: ConditionReason = ConditionReason.PODS_NOT_READY
    """Condition reason for `waiting_for`; unused if that is empty."""


@dataclass(frozen=True, slots=True)
class ClusterObserved:
    """One Ray cluster."""

    number: ClusterNumber
    is_ready: bool = False
    is_lost: bool = False
    """The head and everything on it are gone."""
    may_return: bool = False
    """KubeRay restarts the lost head; nodes, ranks and engines survive."""
    may_save: bool = False
    """The lost head is still terminating, and its driver may be saving."""
    is_queued: bool = False
    """A queueing system has suspended the cluster and will resume it."""
    cause: Cause | None = None
    """Cause of a loss as reported by pods or processes (OOM kill, node, image)."""
    short_of: Shortage | None = None
    """Which memory ran out, if that is the cause."""
    node: str = ""
    """Node that the loss is attributed to; "" if none."""
    image_ids: tuple[str, ...] = ()
    """Image IDs that its pods have reported, the head's first."""
    ray_version: str = ""
    """Ray version reported by the head before an attempt starts; "" if unknown."""
    message: str = ""
    waiting_reason: ConditionReason = ConditionReason.PODS_NOT_READY
    """Condition reason for pods that do not start, if the cluster is neither ready nor lost."""


@dataclass(frozen=True, slots=True)
class AttemptObserved:
    """The newest attempt as reported by Ray's Jobs API, or locally by its process."""

    number: AttemptNumber
    status: SubmissionStatus
    exit_code: int | None = None
    message: str = ""
    is_out_of_memory: bool = False
    """Ray killed the driver because the head was low on memory."""


@dataclass(frozen=True, slots=True)
class RetrieverObserved:
    """A managed retriever."""

    name: str
    address: str
    """Base URL of its service."""
    is_ready: bool = False
    problem: str = ""
    has_ended: bool = False
    """Its process or pod has exited and must be restarted."""
    cause: Cause | None = None
    """Cause that a restart cannot fix; None if it can."""


@dataclass(frozen=True, slots=True)
class DeviceObserved:
    """The smallest GPU that the job's pods may get, according to node labels."""

    memory_mib: int
    compute_major: int
    """Major compute capability; 0 if unknown."""
    product: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a runtime observed for one round. None: the object does not exist."""

    preflight: PreflightObserved | None = None
    cluster: ClusterObserved | None = None
    attempt: AttemptObserved | None = None
    progress: Progress | None = None
    """Response of GET /progress; None if it could not be read."""
    retrievers: tuple[RetrieverObserved, ...] = ()
    device: DeviceObserved | None = None
    """Observed once preflight has a result; None if unknown."""
    is_head_reachable: bool = True
    default_image: str = ""
    """Image of jobs without `spec.image`; "" for the local installation."""
    in_pods: bool = True
    """False for local runs, where folders replace volumes."""
    delay_seconds: float = 0.0
    """How much later than requested the round started because of other jobs."""
    evidence_seconds: float = 0.0
    """How long to wait for the pod status to explain the exit of a driver."""

    @property
    def is_queued(self) -> bool:
        """Whether a queueing system holds the job's pods back."""
        return self.cluster is not None and self.cluster.is_queued
