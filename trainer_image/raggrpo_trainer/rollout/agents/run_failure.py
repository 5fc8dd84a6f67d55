"""Why a run of an application failed. Pure."""

from collections.abc import Mapping

from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.gateway.trajectory import NOT_PARSED, Trajectory, TrajectoryCause
from raggrpo_trainer.sample_failures import SampleFailed

from .runner import SOURCE

_CAUSES: Mapping[TrajectoryCause, FailureCause] = {
    cause: FailureCause(str(cause)) for cause in TrajectoryCause
}
_OF_POLICY = frozenset(
    {
        FailureCause.RAISED,
        FailureCause.MALFORMED_TOOL_CALL,
        FailureCause.MAX_TURNS,
        FailureCause.CONTEXT_LENGTH,
        FailureCause.REQUEST_REJECTED,
    }
)
SHOWN_MODELS = 4


def is_of_policy(cause: FailureCause) -> bool:
    """Return whether a text of the policy may have caused the failure.

    Such failures are expected early in training. They do not count toward `maxFailureRatio`.
    """
    return cause in _OF_POLICY


def run_failure(trajectory: Trajectory, error: CallFailed | None) -> SampleFailed | None:
    """Return the failure of a run, or None if it succeeded.

    `error` is the error of the application or of its result. An error of a call explains an error
    of the application; the application may also have handled it.
    """
    recorded = trajectory.failure
    if recorded is not None and (error is not None or recorded.is_fatal):
        after = "" if error is None else f"; then the application failed: {error}"
        return SampleFailed(SOURCE, _CAUSES[recorded.cause], f"{recorded.detail}{after}")
    unparsed = _unparsed(trajectory)
    if error is not None and error.cause is FailureCause.RAISED and unparsed:
        detail = f"{unparsed}; then the application failed: {error}"
        return SampleFailed(SOURCE, FailureCause.MALFORMED_TOOL_CALL, detail)
    if error is not None:
        return SampleFailed(SOURCE, error.cause, error.detail)
    if not trajectory.turns:
        detail = "the application returned a result without calling the model at OPENAI_BASE_URL"
        if trajectory.untrained_calls:
            names = ", ".join(list(trajectory.untrained_calls)[:SHOWN_MODELS])
            detail = f"the application only called models that are not trained: {names}"
        return SampleFailed(SOURCE, FailureCause.NO_MODEL_CALL, detail)
    return None


def _unparsed(trajectory: Trajectory) -> str:
    """Return the first note on a reply that could not be parsed, or ""."""
    return next((note for note in trajectory.notes if note.startswith(NOT_PARSED)), "")
