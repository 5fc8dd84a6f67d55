"""Ray reports success, although the driver has reached only a target below that of the job."""

from datetime import timedelta

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.core.lifecycle.observed import SubmissionStatus
from support.fakes.fake_runtime import T0, FakeRuntime, Scenario, make_scenario_job

DEADLINE_SECONDS = 120
MAX_TIME = timedelta(hours=6)


class FalseSuccessRuntime(FakeRuntime):
    """A driver that succeeds at its own target, either immediately or when it is stopped."""

    at_once = True

    def _move(self) -> None:
        attempt = self.attempt
        if attempt is not None and (self.at_once or attempt.stopping is not None):
            attempt.status, attempt.exit_code = SubmissionStatus.SUCCEEDED, 0

    def _progress(self) -> Progress | None:
        if self.attempt is None:
            return None
        return Progress(
            attempt=self.attempt.number,
            stage=Stage.FINISHED,
            step=1,
            total_steps=1,
            started_from_step=1,
        )


@pytest.mark.row("E3")
@pytest.mark.parametrize("at_once", [True, False])
async def test_repeated_false_success_fails_job(at_once: bool) -> None:
    runtime = FalseSuccessRuntime()
    runtime.at_once = at_once
    changes = {"training.totalSteps": 100_000, "activeDeadlineSeconds": DEADLINE_SECONDS}
    scenario = Scenario(make_scenario_job(changes), runtime)

    while runtime.now < T0 + MAX_TIME and await scenario.round() is not None:
        pass

    assert scenario.condition(ConditionType.FAILED)[0] == "True"
    causes = {each.cause for each in scenario.status.attempts}
    assert causes == {Cause.FALSE_SUCCESS if at_once else Cause.DEADLINE_EXCEEDED}
    assert scenario.status.attempt < 20
