"""Why a run failed: the gateway's record, the application's error and the replies."""

import pytest

from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.gateway.trajectory import NOT_PARSED, Prompt, Trajectory, TrajectoryCause, Turn
from raggrpo_trainer.rollout.agents.run_failure import is_of_policy, run_failure

RAISED = CallFailed(FailureCause.RAISED, "KeyError")


def make_trajectory(*, turns: int = 1) -> Trajectory:
    trajectory = Trajectory("key", (0,), 1.0, 1.0)
    trajectory.turns += [Turn(Prompt("q", (1,)), (2,), (-0.5,), "a", "", {}, 0)] * turns
    return trajectory


def cause_of(trajectory: Trajectory, error: CallFailed | None) -> FailureCause | None:
    failure = run_failure(trajectory, error)
    return failure.cause if failure else None


def test_run_with_a_model_call_succeeds() -> None:
    assert run_failure(make_trajectory(), None) is None


@pytest.mark.parametrize(("error", "expected"), [
    (RAISED, FailureCause.MALFORMED_TOOL_CALL),
    (CallFailed(FailureCause.TIMEOUT, "slow"), FailureCause.TIMEOUT),
    (None, None),
])  # fmt: skip
def test_reply_that_is_not_parsed_explains_only_errors_of_the_application(
    error: CallFailed | None, expected: FailureCause | None
) -> None:
    trajectory = make_trajectory()
    trajectory.note(f"{NOT_PARSED}: JSONDecodeError")
    assert cause_of(trajectory, error) == expected


@pytest.mark.parametrize("cause", list(TrajectoryCause))
def test_error_of_a_call_explains_error_of_the_application(cause: TrajectoryCause) -> None:
    trajectory = make_trajectory()
    trajectory.record_failure(cause, "why")
    assert cause_of(trajectory, RAISED) == FailureCause(str(cause))
    is_fatal = cause is TrajectoryCause.MISSING_LOGPROBS
    assert (cause_of(trajectory, None) is not None) == is_fatal


def test_failed_endpoint_precedes_rejected_requests_and_is_not_of_the_policy() -> None:
    trajectory = make_trajectory()
    trajectory.record_failure(TrajectoryCause.REQUEST_REJECTED, "first")
    trajectory.record_failure(TrajectoryCause.FORWARD_FAILED, "second")
    assert cause_of(trajectory, RAISED) == FailureCause.FORWARD_FAILED
    assert not is_of_policy(FailureCause.FORWARD_FAILED)


def test_calls_of_other_models_only_are_named() -> None:
    trajectory = make_trajectory(turns=0)
    trajectory.count_untrained("judge")
    failure = run_failure(trajectory, None)
    assert failure
    assert failure.cause is FailureCause.NO_MODEL_CALL
    assert failure.detail == "the application only called models that are not trained: judge"
