"""Failures: evidence about an ended attempt becomes one cause with its policy. Pure tables."""

from dataclasses import dataclass
from enum import StrEnum

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.status.cause import Cause
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    SubmissionStatus,
)


class Restart(StrEnum):
    """Which tier of recovery a cause asks for."""

    WARM = "Warm"
    NEW = "New"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Policy:
    """What follows a cause."""

    restart: Restart
    is_counted: bool = True
    """Whether it spends the restart budget."""
    may_be_cluster_fault: bool = True
    """Whether a Ray cluster may be to blame, so that repetition asks for a new one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Why an attempt ended, with a message a user can act on."""

    cause: Cause
    message: str
    short_of: Shortage | None = None
    """Which memory ran out, if that is known."""


CAUSE_OF_EXIT: dict[int, Cause] = {
    ExitCode.PROGRAM_ERROR: Cause.PROGRAM_ERROR,
    ExitCode.CONFIG_ERROR: Cause.CONFIG_ERROR,
    ExitCode.DATA_ERROR: Cause.DATA_ERROR,
    ExitCode.PREFLIGHT_FAILED: Cause.PREFLIGHT_FAILED,
    ExitCode.REWARD_CODE_ERROR: Cause.REWARD_CODE_ERROR,
    ExitCode.CUDA_OUT_OF_MEMORY: Cause.CUDA_OUT_OF_MEMORY,
    ExitCode.ROLLOUT_ENGINE_LOST: Cause.ROLLOUT_ENGINE_LOST,
    ExitCode.TRAINER_RANK_LOST: Cause.TRAINER_RANK_LOST,
    ExitCode.COLLECTIVE_TIMEOUT: Cause.COLLECTIVE_TIMEOUT,
    ExitCode.NON_FINITE: Cause.NON_FINITE,
    ExitCode.POLICY_MISMATCH: Cause.POLICY_MISMATCH,
    ExitCode.RETRIEVAL_UNAVAILABLE: Cause.RETRIEVAL_UNAVAILABLE,
    ExitCode.CHECKPOINT_WRITE_FAILED: Cause.CHECKPOINT_WRITE_FAILED,
    ExitCode.VOLUME_FULL: Cause.VOLUME_FULL,
    ExitCode.CHECKPOINT_INCOMPATIBLE: Cause.CHECKPOINT_INCOMPATIBLE,
    ExitCode.CHECKPOINT_PATH_IN_USE: Cause.CHECKPOINT_PATH_IN_USE,
    ExitCode.RANKS_STUCK: Cause.RANKS_STUCK,
    ExitCode.HOST_OUT_OF_MEMORY: Cause.HOST_OUT_OF_MEMORY,
    ExitCode.PREEMPTED: Cause.PREEMPTED,
    ExitCode.SUPERSEDED: Cause.SUPERSEDED,
}

_NEVER = Policy(Restart.NEVER)
_WARM = Policy(Restart.WARM)
_NEW = Policy(Restart.NEW)

POLICIES: dict[Cause, Policy] = {
    Cause.CONFIG_ERROR: _NEVER,
    Cause.DATA_ERROR: _NEVER,
    Cause.PREFLIGHT_FAILED: _NEVER,
    Cause.REWARD_CODE_ERROR: _NEVER,
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
    Cause.STOPPED: _WARM,
    Cause.IMAGE_CHANGED: _NEVER,
    Cause.HEAD_LOST: _WARM,  # where its successor knows the cluster
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


def classify(
    attempt: AttemptObserved | None,
    cluster: ClusterObserved | None,
    progress: Progress | None,
    *,
    was_reported: bool,
    intent: Cause | None,
    total_steps: int,
) -> Ended | None:
    """Return why the attempt ended, None while it may still run.

    Infrastructure wins over exit codes: a driver on a dying head can end with any code. `progress`
    must belong to this attempt. `was_reported` says whether the head knew the attempt before;
    `intent` is the cause recorded before we asked it to stop.
    """
    if cluster is None or cluster.is_lost:
        if intent is not None:
            return Ended(intent, f"the attempt was stopped ({intent}) and its cluster ended")
        cause = (cluster and cluster.cause) or Cause.HEAD_LOST
        message = (cluster and cluster.message) or "the Ray cluster is gone"
        return Ended(cause, message, cluster.short_of if cluster else None)
    if attempt is None and cluster.is_queued:  # it ended with its pods
        return Ended(intent or Cause.PREEMPTED, cluster.message)
    if attempt is None and was_reported:
        return Ended(Cause.HEAD_LOST, "the head forgot the attempt: it restarted")
    if attempt is None or not attempt.status.is_terminal:
        return None
    is_done = progress is not None and progress.step >= total_steps
    if attempt.status is SubmissionStatus.SUCCEEDED and (intent is None or is_done):
        return _verified_success(progress, total_steps)  # losses were replaced in place
    if cluster.cause is not None:
        return Ended(cluster.cause, cluster.message, cluster.short_of)
    if intent is not None:
        return Ended(intent, f"the attempt was stopped: {intent}")
    if cluster.is_queued:  # once ranks die first, the driver's exit code means nothing
        return Ended(Cause.PREEMPTED, cluster.message)
    if attempt.status is SubmissionStatus.STOPPED:
        return Ended(Cause.STOPPED, "somebody else stopped the submission")
    return _from_exit_code(attempt, progress)


def _verified_success(progress: Progress | None, total_steps: int) -> Ended:
    """Return success only if the attempt reached its own target.

    The job's may have been raised since, which is not the attempt's failure.
    """
    step = progress.step if progress else 0
    total_steps = min(total_steps, (progress and progress.total_steps) or total_steps)
    if step >= total_steps:
        return Ended(Cause.SUCCEEDED, f"reached step {step}")
    message = f"the driver exited with 0 at step {step}, before step {total_steps}"
    return Ended(Cause.FALSE_SUCCESS, message)


def _from_exit_code(attempt: AttemptObserved, progress: Progress | None) -> Ended:
    code, failure = attempt.exit_code, progress.failure if progress else None
    if failure is not None and code in (None, failure.exit_code):
        cause = CAUSE_OF_EXIT.get(failure.exit_code, Cause.PROGRAM_ERROR)
        return Ended(cause, failure.message, _shortage(failure.short_of))
    if code is None and attempt.is_out_of_memory:
        return Ended(Cause.HOST_OUT_OF_MEMORY, attempt.message, Shortage.HEAD_HOST)
    if code is None:
        how = "ended without an exit code"
    else:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    cause = CAUSE_OF_EXIT.get(code or 0, Cause.PROGRAM_ERROR)
    return Ended(cause, f"the driver {how}: {attempt.message}")


def _shortage(told: str) -> Shortage | None:
    """Return what the trainer named; a word of another release says nothing."""
    return Shortage(told) if told in set(Shortage) else None
