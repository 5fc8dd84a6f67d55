"""Table with the recovery policy of each cause."""

from dataclasses import dataclass
from enum import StrEnum

from raggrpo_api.status.cause import Cause


class Restart(StrEnum):
    """Where the job restarts: on the warm Ray cluster, on a new cluster, or not at all."""

    WARM = "Warm"
    NEW = "New"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Policy:
    """Recovery policy of a cause."""

    restart: Restart
    is_counted: bool = True
    """Whether the restart counts against the restart budget."""
    may_be_cluster_fault: bool = True
    """Whether the Ray cluster may be at fault; if so, repeated failures lead to a new cluster."""


_NEVER = Policy(Restart.NEVER)
_WARM = Policy(Restart.WARM)
_NEW = Policy(Restart.NEW)

POLICIES: dict[Cause, Policy] = {
    Cause.CONFIG_ERROR: _NEVER,
    Cause.DATA_ERROR: _NEVER,
    Cause.STAGING_FAILED: _NEVER,
    Cause.PREFLIGHT_FAILED: _NEVER,
    Cause.REWARD_CODE_ERROR: _NEVER,
    Cause.AGENT_ERROR: _NEVER,
    Cause.CUDA_OUT_OF_MEMORY: _WARM,
    Cause.HOST_OUT_OF_MEMORY: _NEW,
    Cause.ROLLOUT_ENGINE_LOST: _WARM,
    Cause.TRAINER_RANK_LOST: _WARM,
    Cause.COLLECTIVE_TIMEOUT: _WARM,
    Cause.NON_FINITE: _WARM,
    Cause.POLICY_MISMATCH: _NEVER,
    Cause.RETRIEVAL_UNAVAILABLE: Policy(Restart.WARM, may_be_cluster_fault=False),
    Cause.ENDPOINT_DOWN: _NEVER,
    Cause.CHECKPOINT_WRITE_FAILED: _WARM,
    Cause.VOLUME_FULL: _NEVER,
    Cause.CHECKPOINT_INCOMPATIBLE: _NEVER,
    Cause.CHECKPOINT_PATH_IN_USE: _NEVER,
    Cause.STALLED: _WARM,
    Cause.RESUME_MISMATCH: _WARM,
    Cause.FALSE_SUCCESS: _WARM,
    Cause.PREEMPTED: Policy(Restart.WARM, is_counted=False),
    Cause.SUPERSEDED: Policy(Restart.WARM, is_counted=False),
    Cause.SUSPENDED: Policy(Restart.NEW, is_counted=False),
    Cause.DEGRADED: Policy(Restart.WARM, is_counted=False),
    Cause.NOT_LEARNING: _NEVER,
    Cause.STOPPED: _WARM,
    Cause.IMAGE_CHANGED: _NEVER,
    Cause.HEAD_LOST: _WARM,  # works if the restarted head restores the cluster
    Cause.WORKER_LOST: _WARM,
    Cause.NODE_LOST: _NEW,
    Cause.RANKS_STUCK: _NEW,
    Cause.START_FAILED: _NEVER,
    Cause.UNSCHEDULABLE: _NEVER,
    Cause.PROGRESS_UNREACHABLE: _WARM,
    Cause.DEADLINE_EXCEEDED: _NEVER,
    Cause.RESTART_BUDGET_EXHAUSTED: _NEVER,
    Cause.PROGRAM_ERROR: _WARM,
    Cause.SUCCEEDED: _NEVER,
}
