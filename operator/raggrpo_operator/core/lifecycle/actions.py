"""Actions that `decide` requests from a runtime. Each is safe to perform twice.

They carry all inputs, so a runtime neither resolves a job nor sizes its pods.
"""

from dataclasses import dataclass

from raggrpo_api.fields.base import AttemptNumber, ClusterNumber
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_api.status.sizing import Sizing
from raggrpo_api.trainer.config import TrainerConfig


@dataclass(frozen=True, slots=True)
class PodPlan:
    """Inputs for rendering a job's pods (locally: its processes)."""

    spec: JobSpec
    """The resolved spec."""
    image: str
    sizing: Sizing


@dataclass(frozen=True, slots=True)
class StartPreflight:
    """Run preflight in a process or pod without a GPU."""

    plan: PodPlan
    config: TrainerConfig
    spec_hash: str


@dataclass(frozen=True, slots=True)
class DeletePreflight:
    """Remove the finished preflight."""


@dataclass(frozen=True, slots=True)
class StartRetriever:
    """Start the managed retriever of the endpoint with this name."""

    plan: PodPlan
    name: str
    managed: ManagedRetriever


@dataclass(frozen=True, slots=True)
class StopRetrievers:
    """Stop all managed retrievers."""


@dataclass(frozen=True, slots=True)
class CreateCluster:
    """Create the job's Ray cluster with this number."""

    plan: PodPlan
    number: ClusterNumber
    name: str
    """Name from the status; earlier releases may have used another scheme."""
    ray_version: str
    """Ray version of the image; "" if preflight has not reported it."""
    grace_seconds: int
    """Time for a driver to save after SIGTERM."""
    avoided_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete the cluster with everything on it, including engines."""

    number: ClusterNumber


@dataclass(frozen=True, slots=True)
class SubmitAttempt:
    """Record the configuration and submit the driver."""

    config: TrainerConfig
    cluster: ClusterNumber


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Send SIGTERM to the driver, which saves and exits; SIGKILL after the grace period."""

    number: AttemptNumber


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Write the stacks of driver, ranks and engines to the log folder."""

    number: AttemptNumber


Action = (
    StartPreflight
    | DeletePreflight
    | StartRetriever
    | StopRetrievers
    | CreateCluster
    | DeleteCluster
    | SubmitAttempt
    | StopAttempt
    | DumpStacks
)
