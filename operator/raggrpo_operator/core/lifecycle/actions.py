"""Actions: what `decide` asks a runtime to do. Every one of them is safe to perform twice."""

from dataclasses import dataclass

from raggrpo_api.trainer_config import TrainerConfig


@dataclass(frozen=True, slots=True)
class StartPreflight:
    """Run the checks in a process or pod without a GPU."""

    config: TrainerConfig
    spec_hash: str


@dataclass(frozen=True, slots=True)
class DeletePreflight:
    """Remove the finished preflight."""


@dataclass(frozen=True, slots=True)
class StartRetriever:
    """Start the managed retriever of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class StopRetrievers:
    """Stop all managed retrievers."""


@dataclass(frozen=True, slots=True)
class CreateCluster:
    """Create the number-th Ray cluster of the job."""

    number: int


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete that cluster with everything on it, engines included."""

    number: int


@dataclass(frozen=True, slots=True)
class SubmitAttempt:
    """Record the configuration and submit the driver."""

    config: TrainerConfig
    cluster: int


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """SIGTERM the driver, which saves and exits; SIGKILL after the grace period."""

    number: int


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Write the stacks of driver, ranks and engines to the log folder."""

    number: int


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
