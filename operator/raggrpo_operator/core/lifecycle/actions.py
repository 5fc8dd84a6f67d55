"""Actions that `decide` requests from a runtime. Each is safe to perform twice.

An action carries all its inputs, so a runtime neither resolves a job nor sizes its pods.
"""

from dataclasses import dataclass

from raggrpo_api.fields.base import AttemptNumber, ClusterNumber
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.agent import AgentContainer, AgentSpec
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_api.status.sizing import Sizing
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.staging import StagingRequest


@dataclass(frozen=True, slots=True)
class PodPlan:
    """Inputs for rendering a job's pods, or for starting its processes in a local run."""

    spec: JobSpec
    """The resolved spec."""
    image: str
    sizing: Sizing


@dataclass(frozen=True, slots=True)
class StartStaging:
    """Download models and data in a pod or local process without a GPU."""

    plan: PodPlan
    request: StagingRequest
    request_hash: str


@dataclass(frozen=True, slots=True)
class DeleteStaging:
    """Delete the staging pod or process."""


@dataclass(frozen=True, slots=True)
class StartPreflight:
    """Run preflight in a pod or local process without a GPU."""

    plan: PodPlan
    config: TrainerConfig
    spec_hash: str


@dataclass(frozen=True, slots=True)
class DeletePreflight:
    """Delete the preflight pod or process."""


@dataclass(frozen=True, slots=True)
class StartPush:
    """Upload the results of the complete job in a pod or local process without a GPU."""

    plan: PodPlan
    job: RagGrpoJob
    """The job with its status at the start of the push."""
    request_hash: str


@dataclass(frozen=True, slots=True)
class DeletePush:
    """Delete the push pod or process."""


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
class ApplyServices:
    """Create the Services of the gateway, the agent and the retrievers that do not exist."""

    agent: AgentSpec | None


@dataclass(frozen=True, slots=True)
class StartAgent:
    """Start the container of the agent, or replace it if its spec has changed."""

    plan: PodPlan
    container: AgentContainer
    spec_hash: str


@dataclass(frozen=True, slots=True)
class StopAgent:
    """Stop the container of the agent."""


@dataclass(frozen=True, slots=True)
class CreateCluster:
    """Create the job's Ray cluster with this number."""

    plan: PodPlan
    number: ClusterNumber
    name: str
    """Cluster name from the status; earlier releases may have named clusters differently."""
    ray_version: str
    """Ray version of the image, or "" if preflight has not reported it."""
    grace_seconds: int
    """Seconds that a driver has after SIGTERM to save a checkpoint and exit."""
    avoided_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete the Ray cluster and everything that runs on the cluster, including engines."""

    number: ClusterNumber


@dataclass(frozen=True, slots=True)
class SubmitAttempt:
    """Record the attempt's configuration and submit its driver to the Ray cluster."""

    config: TrainerConfig
    cluster: ClusterNumber


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Send SIGTERM to the driver, which saves and exits; send SIGKILL after the grace period."""

    number: AttemptNumber


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Write the stack traces of the driver, ranks and engines to the log folder."""

    number: AttemptNumber


Action = (
    StartStaging
    | DeleteStaging
    | StartPreflight
    | DeletePreflight
    | StartPush
    | DeletePush
    | StartRetriever
    | StopRetrievers
    | ApplyServices
    | StartAgent
    | StopAgent
    | CreateCluster
    | DeleteCluster
    | SubmitAttempt
    | StopAttempt
    | DumpStacks
)
