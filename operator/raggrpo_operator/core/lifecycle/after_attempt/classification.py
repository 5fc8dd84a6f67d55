"""Classify the end of an attempt: derive one cause from the evidence. Pure."""

from dataclasses import dataclass

from raggrpo_api.fields.text import error_first
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.status.cause import Cause
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    SubmissionStatus,
)

MAX_LOG_CHARACTERS = 1000
"""Maximum length of the driver's log in a message."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """Cause of the end of an attempt, with a message for the user."""

    cause: Cause
    message: str
    short_of: Shortage | None = None
    """The memory that ran out, or None if memory is not the cause or unknown."""


CAUSE_OF_EXIT: dict[int, Cause] = {
    ExitCode.PROGRAM_ERROR: Cause.PROGRAM_ERROR,
    ExitCode.CONFIG_ERROR: Cause.CONFIG_ERROR,
    ExitCode.DATA_ERROR: Cause.DATA_ERROR,
    ExitCode.PREFLIGHT_FAILED: Cause.PREFLIGHT_FAILED,
    ExitCode.REWARD_CODE_ERROR: Cause.REWARD_CODE_ERROR,
    ExitCode.AGENT_ERROR: Cause.AGENT_ERROR,
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


def classify(
    attempt: AttemptObserved | None,
    cluster: ClusterObserved | None,
    progress: Progress | None,
    *,
    was_reported: bool,
    intent: Cause | None,
    total_steps: int,
) -> AttemptEnd | None:
    """Return why the attempt ended, or None if it may still be running.

    Evidence from the infrastructure takes precedence over exit codes, because a driver on a
    failing head can exit with any code. `progress` must belong to this attempt. `was_reported` is
    True if the head has reported this attempt before. `intent` is the cause that was recorded
    before the operator stopped the attempt, or None if the operator did not stop it.
    """
    if cluster is None or cluster.is_lost:
        if intent is not None:
            return AttemptEnd(
                intent, f"the attempt was stopped ({intent}), and its cluster is gone"
            )
        cause = (cluster and cluster.cause) or Cause.HEAD_LOST
        message = (cluster and cluster.message) or "the Ray cluster is gone"
        return AttemptEnd(cause, message, cluster.short_of if cluster else None)
    if attempt is None and cluster.is_queued:  # the driver was terminated with its pods
        return AttemptEnd(intent or Cause.PREEMPTED, cluster.message)
    if attempt is None and was_reported:
        return AttemptEnd(Cause.HEAD_LOST, "the head restarted and lost the attempt")
    if attempt is None or not attempt.status.is_terminal:
        return None
    is_done = progress is not None and progress.step >= total_steps
    if attempt.status is SubmissionStatus.SUCCEEDED and (intent is None or is_done):
        return _verified_success(progress, total_steps)  # lost engines were replaced in place
    if cluster.cause is not None:
        return AttemptEnd(cluster.cause, cluster.message, cluster.short_of)
    if intent is not None:
        return AttemptEnd(intent, f"the attempt was stopped: {intent}")
    if cluster.is_queued:  # if ranks are terminated first, the driver may exit with any code
        return AttemptEnd(Cause.PREEMPTED, cluster.message)
    if attempt.status is SubmissionStatus.STOPPED:
        return AttemptEnd(Cause.STOPPED, "the submission was stopped, but not by the operator")
    return _from_exit_code(attempt, progress)


def _verified_success(progress: Progress | None, total_steps: int) -> AttemptEnd:
    """Return success if the attempt reached the target it started with, else FALSE_SUCCESS.

    The target is in steps. The user may have raised it after the attempt started.
    """
    step = progress.step if progress else 0
    total_steps = min(total_steps, (progress and progress.total_steps) or total_steps)
    if step >= total_steps:
        return AttemptEnd(Cause.SUCCEEDED, f"reached step {step}")
    message = f"the driver exited with code 0 at step {step}, before step {total_steps}"
    return AttemptEnd(Cause.FALSE_SUCCESS, message)


def _from_exit_code(attempt: AttemptObserved, progress: Progress | None) -> AttemptEnd:
    code = attempt.exit_code
    failure = progress.failure if progress else None
    if failure is not None and code in (None, failure.exit_code):
        cause = CAUSE_OF_EXIT.get(failure.exit_code, Cause.PROGRAM_ERROR)
        return AttemptEnd(cause, failure.message, _shortage(failure.short_of))
    if code is None and attempt.is_out_of_memory:
        return AttemptEnd(Cause.HOST_OUT_OF_MEMORY, attempt.message, Shortage.HEAD_HOST)
    if code is None:
        how = "exited without an exit code"
    else:
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    cause = CAUSE_OF_EXIT.get(code or 0, Cause.PROGRAM_ERROR)
    log = error_first(attempt.message, MAX_LOG_CHARACTERS)
    return AttemptEnd(cause, f"{log}; the driver {how}" if log else f"the driver {how}")


def _shortage(reported: str) -> Shortage | None:
    """Return the reported shortage, or None if this release does not define such a shortage."""
    return Shortage(reported) if reported in set(Shortage) else None
