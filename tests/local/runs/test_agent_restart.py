"""Agents whose run loses processes in mid-trajectory: real Ray, vLLM, FSDP2, 1 rank, FP32."""

from pathlib import Path
from typing import Any

import pytest

from local.drills.agent_drill import STEPS, AgentRun
from local.drills.drill import Outcome
from raggrpo_api.trainer.history import read_history
from support.builders.trainer.obedient_agent import OWN_PROCESS

SLOW_STEPS = ",".join(f"slow-step@step={step}:1@attempt=0" for step in range(2, STEPS))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = AgentRun(tmp_path_factory.mktemp("agent") / "undisturbed")
    outcome = run.finish(run.start())
    assert (run.failures(), run.repeats()) == ([], [])
    return outcome


def reach(run: AgentRun, step: int, attempt: int = 1) -> None:
    def is_reached(status: dict[str, Any]) -> bool:
        newest = (status.get("attempts") or [{}])[0]
        has_started = newest.get("number") == attempt and newest.get("fromStep") is not None
        return has_started and status["progress"]["step"] >= step

    run.wait_for(is_reached, f"step {step} of attempt {attempt}")


@pytest.mark.row("F2")
@pytest.mark.timeout(900)
def test_weights_are_identical_after_losses_in_mid_trajectory(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = AgentRun(tmp_path / "run")
    (run.orders / "shuffle").touch()
    process = run.start(SLOW_STEPS)
    reach(run, 1)
    run.order("kill", OWN_PROCESS)
    run.order("kill, then disconnect", run.victim("engine").pid)
    reach(run, run.status()["progress"]["step"] + 2)
    run.order("kill", run.victim("driver").pid)
    reach(run, 3, attempt=2)
    run.order("old keys")
    outcome = run.finish(process)

    assert outcome.causes == ["RolloutEngineLost", "ProgramError"]
    assert outcome.weights == undisturbed.weights
    steps = read_history(tmp_path / "run" / "checkpoints" / "logs")
    assert [each["step"] for each in steps] == [*range(1, STEPS + 1)]
    assert run.failures() == []
    assert {*run.repeats()} == {
        "Exited: was killed by signal 9 (Killed)",
        "a client disconnected while an engine was replaced",
    }
    assert {*(run.orders / "statuses").read_text().split()} == {"401"}
    assert outcome.left_over == []


@pytest.mark.row("F2")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("order", "victim"),
    [
        ("kill", "application"),
        ("kill", "engine"),
        ("kill, then disconnect", "engine"),
        ("kill", "driver"),
        ("kill", "rank"),
        ("kill", "head"),
    ],
)
def test_weights_are_identical_after_each_kill_in_mid_trajectory(
    undisturbed: Outcome, tmp_path: Path, order: str, victim: str
) -> None:
    run = AgentRun(tmp_path / "run")
    process = run.start(SLOW_STEPS)
    reach(run, 2)
    run.order(order, OWN_PROCESS if victim == "application" else run.victim(victim).pid)
    outcome = run.finish(process)

    assert outcome.weights == undisturbed.weights
    assert run.failures() == []
    assert outcome.left_over == []
