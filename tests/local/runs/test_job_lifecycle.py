"""One job through its whole life: interrupted, continued, complete, raised, shared, looked at.

Real Ray, vLLM, FSDP2 and retrieval; a second rank joins for the last steps.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local.drills.drill import TEMPLATE, Outcome, Run, strike
from local.drills.local_run_probe import SUBMISSIONS, LocalRunProbe, mode_of

WIDER = ("spec.training.totalSteps=15", "spec.resources.ranks=2")
pytestmark = pytest.mark.timeout(1500)


@dataclass(frozen=True, slots=True)
class Life:
    """What was seen of one job, run by run."""

    run: Run
    interrupted: Outcome
    again: Outcome
    refused_meanwhile: str
    raised: Outcome
    seen: LocalRunProbe
    refused_changes: list[str]


def loads_in_attempt(status: dict[str, Any], number: int) -> bool:
    """Tell whether the attempt's driver holds the checkpoint folder and its ranks load."""
    return status.get("attempt") == number and status["progress"]["stage"] == "LoadingModel"


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    folder = tmp_path_factory.mktemp("life")
    run = Run(folder / "run")
    interrupted = strike(run, "ctrl-c", "between")
    again = run.finish(run.start())

    time_to_look = "slow-step@step=14:3@attempt=3"
    process = run.start(time_to_look, *WIDER)
    seen = LocalRunProbe(run, folder / "owned")
    with ThreadPoolExecutor(1) as thread:
        watched = thread.submit(seen.watch, process, ask_after=13)
        run.wait_for(lambda s: loads_in_attempt(s, 3), "attempt 3")
        refused_meanwhile = run.refused(folder / "other")
        watched.result()
    raised = run.finish(process)

    folders = (run.dir, folder / "other")
    changes = [run.refused(each, *WIDER, "spec.training.seed=5") for each in folders]
    return Life(run, interrupted, again, refused_meanwhile, raised, seen, changes)


@pytest.mark.row("A30")
def test_an_interrupted_job_loses_no_step_and_changes_no_parameter(
    request: pytest.FixtureRequest, life: Life
) -> None:
    assert life.interrupted.causes == ["Suspended"]
    assert life.interrupted.summary["attempts"][-1]["lostSteps"] == 0
    # Asked for this late, the other worker has trained it meanwhile.
    undisturbed: Outcome = request.getfixturevalue("undisturbed")
    assert life.interrupted.weights == undisturbed.weights


def test_a_complete_job_is_left_alone(life: Life) -> None:
    assert "is complete" in life.run.log()
    assert len(life.again.summary["attempts"]) == len(life.interrupted.summary["attempts"])


@pytest.mark.row("B20")
def test_a_raised_target_trains_on_with_more_ranks_from_the_checkpoint_of_one(life: Life) -> None:
    assert life.raised.causes == ["Suspended"]
    assert life.raised.summary["step"] == 15
    assert life.raised.left_over == []


def test_nobody_else_may_have_the_folder_meanwhile(life: Life) -> None:
    assert "is in use by job drill" in life.refused_meanwhile


def test_another_configuration_is_told_from_job_folder_and_checkpoint(life: Life) -> None:
    for said in life.refused_changes:
        assert re.search(r"training\.seed.*0.*5", said), said


@pytest.mark.row("E6")
def test_everything_listens_on_the_loopback_interface_only(life: Life) -> None:
    programs = " ".join(life.seen.ports.values())
    for expected in ("gcs_server", "raylet", "RankActor", "_Server", "raggrpo_retriever"):
        assert expected in programs
    assert life.seen.exposed == set()


@pytest.mark.row("E6")
def test_nobody_without_the_token_can_run_read_or_stop_anything(life: Life) -> None:
    for path in (SUBMISSIONS, "/progress", "/stop"):
        assert 401 in life.seen.answers[path], path
        assert not {status for status in life.seen.answers[path] if 200 <= status < 400}, path
    assert not life.seen.owned.exists()


@pytest.mark.row("E6")
def test_only_checkpoints_can_be_read_by_others(life: Life) -> None:
    job, checkpoints = life.run.dir, life.run.dir.parent / "checkpoints"
    private = {path: mode_of(path) for path in (job, *job.rglob("*"), checkpoints / "logs")}
    modes = private | life.seen.modes
    assert {p: oct(m) for p, m in modes.items() if m & 0o077} == {}

    marker = next(checkpoints.rglob("COMPLETE"))
    assert mode_of(marker) == 0o644
    assert mode_of(marker.parent) == 0o755
    assert any("-weights-" in path.name for path in life.seen.modes)


def test_a_template_is_saved_as_its_author_wrote_it(life: Life) -> None:
    saved = list((life.run.dir.parent / "checkpoints").rglob("meta.json"))
    assert saved
    for meta in saved:
        assert json.loads(meta.read_text())["resume_values"]["retrieval.promptTemplate"] == TEMPLATE


@pytest.mark.row("A4")
def test_a_preflight_waits_for_a_service_that_is_down_and_names_it_at_its_deadline(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run")
    shorter = "recovery.deadlines.outageSeconds=2"
    said = run.refused(tmp_path / "job", shorter, endpoint="kb=http://127.0.0.1:9/retrieve")
    assert "failed (EndpointDown): waited" in said
    assert "endpoint kb (http://127.0.0.1:9/retrieve): ConnectionRefused" in said
    assert run.left_over() == []
