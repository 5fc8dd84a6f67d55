"""Effective training time ratio of jobs with 60 steps of 1 s and 10 s of loading per attempt."""

from datetime import timedelta

import pytest

from raggrpo_api.status.conditions import Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.exit_codes import ExitCode
from support.fakes.fake_runtime import (
    CLUSTER_SECONDS,
    LOAD_SECONDS,
    Scenario,
    exits,
    head_is_lost,
    make_scenario,
    until_step,
)

CRASH = exits(ExitCode.PROGRAM_ERROR)


def ratio(scenario: Scenario) -> float:
    return float(scenario.status.effective_training_time_ratio)


def is_suspended(status: JobStatus) -> bool:
    return status.phase is Phase.SUSPENDED


async def test_startup_reduces_effective_training_time_ratio() -> None:
    scenario = make_scenario()

    await scenario.until_quiet()

    assert ratio(scenario) == pytest.approx(60 / (60 + LOAD_SECONDS), abs=0.03)
    assert scenario.status.restarts.lost_steps == 0


@pytest.mark.row("B26")
async def test_lost_steps_and_restart_reduce_effective_training_time_ratio() -> None:
    scenario = make_scenario({(1, 27): CRASH})

    await scenario.until_quiet()

    assert scenario.status.restarts.lost_steps == 7
    assert ratio(scenario) == pytest.approx(60 / (60 + 7 + 2 * LOAD_SECONDS), abs=0.03)


async def test_waiting_for_new_cluster_reduces_effective_training_time_ratio() -> None:
    lost = make_scenario({(1, 27): head_is_lost}, cluster_seconds=60.0)

    await lost.until_quiet()

    assert ratio(lost) == pytest.approx(60 / (60 + 7 + 2 * LOAD_SECONDS + 60), abs=0.03)


async def test_suspension_does_not_reduce_effective_training_time_ratio() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step >= 30)
    scenario.edit({"suspend": True})
    await scenario.until(is_suspended)
    # Some steps complete before the driver has saved and exited.
    stopped = scenario.status.progress.step
    assert ratio(scenario) == pytest.approx(stopped / (stopped + LOAD_SECONDS), abs=0.03)

    scenario.runtime.now += timedelta(hours=10)
    scenario.edit({"suspend": False})
    await scenario.until_quiet()

    assert ratio(scenario) == pytest.approx(60 / (60 + 2 * LOAD_SECONDS), abs=0.03)


async def test_effective_training_time_ratio_is_reported_from_first_step() -> None:
    scenario = make_scenario()

    await scenario.until(lambda status: bool(status.attempts))
    assert scenario.status.effective_training_time_ratio == ""
    await scenario.until(lambda status: status.progress.step >= 20)

    assert ratio(scenario) == pytest.approx(20 / (20 + LOAD_SECONDS), abs=0.06)


async def test_lost_steps_are_corrected_by_resume_step_of_next_attempt() -> None:
    scenario = make_scenario({(1, 27): head_is_lost})
    await scenario.until(lambda status: status.attempt == 2)
    assert scenario.attempts[0].lost_steps == scenario.attempts[0].to_step - 20 > 0

    scenario.runtime.saved.append(27)  # its driver saved before it exited, which was not observed
    await scenario.until_quiet()

    assert scenario.attempts[1].from_step == 27
    assert scenario.attempts[0].lost_steps == 0
    assert scenario.status.restarts.lost_steps == 0
    # Steps after the last poll of the lost head were completed, but by an unknown attempt.
    kept = 60 / (60 + 2 * LOAD_SECONDS + CLUSTER_SECONDS)
    assert ratio(scenario) == pytest.approx(kept, abs=0.05)


async def test_remaining_time_decreases_with_remaining_steps() -> None:
    scenario = make_scenario()
    for step in (20, 40):
        await until_step(scenario, step)
        progress = scenario.status.progress
        assert progress.estimated_remaining_seconds == 60 - progress.step
