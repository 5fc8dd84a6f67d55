"""Changed values between two attempts, and jobs that start from another job's checkpoint."""

import pytest

from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_operator.core.lifecycle.actions import StartPreflight, SubmitAttempt
from raggrpo_operator.core.lifecycle.before_attempt.start_from import RETRY_SECONDS, start_path
from raggrpo_operator.core.lifecycle.observed import StartObserved
from support.builders.operator.jobs import make_job
from support.fakes.fake_runtime import Scenario, make_scenario, until_step

START = {"training.startFrom": {"checkpoint": {"jobRef": "other"}}}
PATH = "/mnt/runs/checkpoints/other"


def configs(scenario: Scenario) -> list[SubmitAttempt]:
    return [each for each in scenario.runtime.performed if isinstance(each, SubmitAttempt)]


async def test_values_changed_while_suspended_apply_to_next_attempt() -> None:
    scenario = make_scenario(changes={"rollout.n": 5, "suspend": False})
    await until_step(scenario, 12)
    scenario.edit({"rollout.n": 5, "suspend": True})
    await scenario.until(lambda status: status.phase is Phase.SUSPENDED)
    saved = scenario.status.checkpoint
    scenario.edit({"rollout.n": 3, "data.trainBatchSize": 4, "suspend": True})
    await scenario.until_quiet()
    assert scenario.status.phase is Phase.SUSPENDED
    scenario.edit({"rollout.n": 3, "data.trainBatchSize": 4, "suspend": False})

    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    first, second = configs(scenario)
    assert [first.config.rollout.n, second.config.rollout.n] == [5, 3]
    assert second.config.data.train_batch_size == 4
    assert second.config.attempt.resume_hash != first.config.attempt.resume_hash
    assert saved is not None
    assert scenario.attempts[1].from_step == saved.step
    assert [attempt.lost_steps for attempt in scenario.attempts] == [0, 0]
    assert scenario.count(StartPreflight) >= 2, "the changed spec is checked again"


async def test_job_waits_for_job_it_starts_from() -> None:
    scenario = make_scenario(changes=START)
    scenario.runtime.start = StartObserved(problem="job other does not exist in namespace default")

    assert await scenario.round() == RETRY_SECONDS

    state, reason, message = scenario.condition(ConditionType.PROGRESSING)
    assert (state, reason) == ("False", "WaitingForStartJob")
    assert message == (
        "spec.training.startFrom.checkpoint.jobRef: job other does not exist in namespace default"
    )
    assert scenario.count(StartPreflight) == 0


async def test_path_of_other_job_is_pinned_for_all_attempts() -> None:
    scenario = make_scenario(changes=START)
    scenario.runtime.start = StartObserved(path=PATH)
    await until_step(scenario, 2)
    scenario.runtime.start = None

    await scenario.until_quiet()

    assert scenario.status.pinned.start_path == PATH
    for config in (each.config for each in configs(scenario)):
        assert config.training.start_from is not None
        assert config.training.start_from.checkpoint.path == PATH
        assert config.training.start_from.checkpoint.job_ref is None
    preflights = [a for a in scenario.runtime.performed if isinstance(a, StartPreflight)]
    assert all(
        each.config.training.start_from is not None
        and each.config.training.start_from.checkpoint.path == PATH
        for each in preflights
    )


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        (
            [{"name": "w", "claimName": "work", "mountPath": "/data"}],
            StartObserved(path="/data/a/b"),
        ),
        (
            [{"name": "w", "claimName": "own", "mountPath": "/mnt/runs"}],
            StartObserved(
                problem="the checkpoints of job other are on claim work, which this job does not "
                "mount: add it to spec.volumes"
            ),
        ),
    ],
)  # fmt: skip
def test_path_of_other_job_is_where_its_claim_is_mounted(
    volumes: list[dict[str, str]], expected: StartObserved
) -> None:
    work = {"name": "runs", "claimName": "work", "mountPath": "/mnt/runs"}
    other = make_job({"volumes": [work], "checkpoint.path": "/mnt/runs/a/b"})
    metadata = other.metadata.model_copy(update={"name": "other"})
    other = other.model_copy(update={"metadata": metadata})

    assert start_path(make_job({"volumes": volumes}), other) == expected


def test_job_does_not_start_from_itself() -> None:
    job = make_job()
    assert "is the job itself" in start_path(job, job).problem
