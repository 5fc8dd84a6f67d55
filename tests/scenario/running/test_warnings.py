"""Warnings in status and Events, without extra rounds or status writes."""

import pytest

from raggrpo_api.status.conditions import Phase
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, PreflightResult
from raggrpo_operator.core.lifecycle.warnings import best_interval
from support.builders.operator.jobs import KNOWN_7B
from support.builders.operator.rounds import notes
from support.fakes.fake_runtime import exits, head_is_lost, make_scenario

WARM = {"training": {"totalSteps": 40, "learningRate": 0.01}}


@pytest.mark.row("A3", "C4", "C7", "C19")
async def test_spec_warning_appears_in_status_and_one_event() -> None:
    scenario = make_scenario({}, WARM)
    await scenario.until_quiet()

    [warning] = scenario.status.warnings
    assert (warning.path, warning.reason) == ("spec.training.learningRate", "LearningRateUnusual")
    assert "0.01" in warning.message
    assert "→" in warning.message
    assert scenario.status.warning_count == 1
    assert sum("spec.training.learningRate" in each for each in notes(scenario)) == 1


async def test_warning_does_not_add_rounds_or_status_writes() -> None:
    with_warning, without = (
        make_scenario({}, WARM),
        make_scenario({}, {"training": {"totalSteps": 40}}),
    )
    await with_warning.until_quiet()
    await without.until_quiet()

    assert with_warning.status.warnings
    assert not without.status.warnings
    assert len(with_warning.runtime.statuses) == len(without.runtime.statuses)
    assert with_warning.delays == without.delays


async def test_preflight_facts_can_cause_warnings() -> None:
    given = {"device": "GPU", "gpusPerNode": 8}
    result = PreflightResult(facts=KNOWN_7B)
    scenario = make_scenario({}, {"resources": given}, preflight_result=result)
    await scenario.until_quiet()

    assert "GpuMemoryUnknown" in {each.reason for each in scenario.status.warnings}


@pytest.mark.row("A12")
async def test_preflight_warning_appears_in_status_and_one_event() -> None:
    unusual = Check(
        id=CheckId.RETRIEVAL_REACHABLE, state=CheckState.WARNED, evidence="kb: nothing was warning"
    )
    result = PreflightResult(facts=KNOWN_7B, checks=[unusual])
    scenario = make_scenario({}, {"training": {"totalSteps": 40}}, preflight_result=result)
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    [warning] = scenario.status.warnings
    assert (warning.path, warning.message) == (
        "spec.retrieval.endpoints",
        "kb: nothing was warning",
    )
    assert scenario.status.warning_count == 1
    assert sum("kb: nothing was warning" in each for each in notes(scenario)) == 1


@pytest.mark.row("C11")
async def test_job_without_volume_is_rejected_on_kubernetes() -> None:
    scenario = make_scenario({}, {"volumes": []})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.INVALID
    [note] = [each for each in notes(scenario) if each.startswith("The spec is invalid")]
    assert "spec.checkpoint.path" in note
    assert "is not on a volume" in note


@pytest.mark.row("C9")
async def test_checkpoint_interval_is_recommended_after_failure() -> None:
    slow = {"training": {"totalSteps": 60}, "checkpoint.everySteps": 500}
    scenario = make_scenario({(1, 55): exits(ExitCode.ROLLOUT_ENGINE_LOST)}, slow)
    scenario.runtime.save_seconds = 2.0
    await scenario.until_quiet()

    [warning] = [each for each in scenario.status.warnings
               if each.path == "spec.checkpoint.everySteps"
               and each.reason == "CheckpointIntervalSuboptimal"]  # fmt: skip
    # √(2 · 2 s · about 65 s) is 16 s, and a step takes 1 s.
    assert "saving takes 2 s" in warning.message
    assert "→ checkpoint.everySteps: 1" in warning.message
    assert sum("1 failure in" in each for each in notes(scenario)) == 1


async def test_optimal_checkpoint_interval_does_not_cause_warning() -> None:
    scenario = make_scenario({(1, 55): head_is_lost}, {"training": {"totalSteps": 60},
                                             "checkpoint.everySteps": 15})  # fmt: skip
    scenario.runtime.save_seconds = 2.0
    await scenario.until_quiet()

    assert scenario.status.restarts.total == 1
    assert not scenario.status.warnings


async def test_undisturbed_job_emits_at_most_eight_events() -> None:
    managed = {"name": "kb", "managed": {"corpus": "/mnt/runs/c"}}
    scenario = make_scenario({}, {"retrieval": {"mode": "Prompt", "endpoints": [managed]}})
    await scenario.until_quiet()

    events = notes(scenario)
    assert len(events) <= 8, events
    assert "Attempt 1 started on a new cluster from step 0" in events
    assert "The spec is valid; preflight passed: 1 check" in events
    assert not [each for each in events if "Unknown" in each or "=" in each]


async def test_restart_event_names_step_and_tier() -> None:
    scenario = make_scenario({(1, 15): exits(ExitCode.PROGRAM_ERROR, "ValueError: on purpose")})
    await scenario.until_quiet()

    started = "Attempt 2 started on the warm cluster from step 10; 5 steps of attempt 1 lost"
    assert started in notes(scenario)
    [ended] = [each for each in notes(scenario) if each.startswith("Attempt 1 ended")]
    assert "ValueError: on purpose" in ended


@pytest.mark.row("C9")
def test_recommended_checkpoint_interval_follows_dalys_formula() -> None:
    assert best_interval(2.0, 65.0) == pytest.approx(14.82, abs=0.01)
    assert best_interval(10.0, 4.0) == 4.0
    assert best_interval(0.001, 1e6) == pytest.approx(44.72, abs=0.01)  # √(2 · δ · M)
