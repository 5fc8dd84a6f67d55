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
        """Return whether the driver has ended."""
        return self in (self.SUCCEEDED, self.FAILED, self.STOPPED)


@dataclass(frozen=True, slots=True)
class PreflightObserved:
    """The preflight process or pod."""

    spec_hash: str
    result: PreflightResult | None = None
    """None while it runs."""
    problem: str = ""
    """Why it ended without a result."""
    waiting_for: str = ""
    """Why it has not started, such as an image that cannot be pulled."""
    waiting_reason: ConditionReason = ConditionReason.PODS_NOT_READY
    """The same as a reason; meaningless if `waiting_for` is empty."""


@dataclass(frozen=True, slots=True)
class ClusterObserved:
    """One Ray cluster."""

    number: ClusterNumber
    is_ready: bool = False
    is_lost: bool = False
    """The head is gone for good, and everything on it."""
    may_return: bool = False
    """The lost head gets a successor that knows the cluster; nodes, ranks and engines live on."""
    may_save: bool = False
    """The lost head is still ending: its driver may be saving, with the help of its ranks."""
    is_queued: bool = False
    """A queueing system holds its pods back or takes them away; it will let them start again."""
    cause: Cause | None = None
    """What pods or processes show about a loss (OOM kill, node, image)."""
    short_of: Shortage | None = None
    """Whose memory ran out, if that is the cause."""
    node: str = ""
    """The node that the loss may be blamed on; empty: none."""
    image_ids: tuple[str, ...] = ()
    """Ids of the images that its pods run, as far as nodes have told; the head's first."""
    ray_version: str = ""
    """As its head tells before an attempt begins; empty: not known."""
    message: str = ""
    waiting_reason: ConditionReason = ConditionReason.PODS_NOT_READY
    """Why its pods do not start, if it is neither ready nor lost."""


@dataclass(frozen=True, slots=True)
class AttemptObserved:
    """The newest attempt as Ray's Jobs API, or on one machine its process, tells of it."""

    number: AttemptNumber
    status: SubmissionStatus
    exit_code: int | None = None
    message: str = ""
    is_out_of_memory: bool = False
    """Ray killed the driver, because the head's memory was nearly used up."""


@dataclass(frozen=True, slots=True)
class RetrieverObserved:
    """A managed retriever."""

    name: str
    address: str
    """Base URL of its service."""
    is_ready: bool = False
    problem: str = ""
    has_ended: bool = False
    """Its process or pod is gone and has to be started again."""
    cause: Cause | None = None
    """Why starting it again would not help."""


@dataclass(frozen=True, slots=True)
class DeviceObserved:
    """The smallest GPU that the job's pods may get, as the nodes' labels tell."""

    memory_mib: int
    compute_major: int
    """Major compute capability; 0: unknown."""
    product: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a runtime saw in one round; None means it does not exist."""

    preflight: PreflightObserved | None = None
    cluster: ClusterObserved | None = None
    attempt: AttemptObserved | None = None
    progress: Progress | None = None
    """Last answer of GET /progress; None when it could not be read."""
    retrievers: tuple[RetrieverObserved, ...] = ()
    device: DeviceObserved | None = None
    """Looked for once preflight has a result; None: not known."""
    is_head_reachable: bool = True
    default_image: str = ""
    """Image of jobs that name none; empty: this machine's own installation."""
    in_pods: bool = True
    """False on one machine, where folders stand in for volumes."""
    late_seconds: float = 0.0
    """How much later than asked this look comes, because the operator had others to look at."""
    evidence_seconds: float = 0.0
    """How long after the end of a driver its pod may still show what ended it."""

    @property
    def is_queued(self) -> bool:
        """Return whether a queueing system holds the job's pods back."""
        return self.cluster is not None and self.cluster.is_queued
