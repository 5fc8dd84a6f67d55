"""Lifecycle of one job: interrupted, resumed, complete, extended, and probed from outside.

Real Ray, vLLM, FSDP2 and retrieval; a second rank joins for the last steps.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local.drills.drill import TEMPLATE, Outcome, Run, run_drill
from local.drills.local_run_probe import SUBMISSIONS, LocalRunProbe, mode_of

WIDER = ("spec.training.totalSteps=15", "spec.resources.ranks=2")
LISTENERS = re.compile(
    r"raggrpo_retriever|gcs_server|raylet|ray::(DashboardAgent|RuntimeEnvAgent|_Server|RankActor"
    r"|RolloutActor)|raggrpo_trainer"
)
"""Listening processes that SECURITY.md lists."""
pytestmark = pytest.mark.timeout(1500)


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Outcomes and observations of one job, run by run."""

    run: Run
    interrupted: Outcome
    second_run: Outcome
    concurrent_rejection: str
    extended: Outcome
    probe: LocalRunProbe
    change_rejections: list[str]


def loads_in_attempt(status: dict[str, Any], number: int) -> bool:
    """Return whether the driver of this attempt has claimed the checkpoint folder."""
    return status.get("attempt") == number and status["progress"]["stage"] == "LoadingModel"


@pytest.fixture(scope="module")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Lifecycle:
    folder = tmp_path_factory.mktemp("life")
    run = Run(folder / "run")
    interrupted = run_drill(run, "ctrl-c", "between")
    second_run = run.finish(run.start())

    slow_step = "slow-step@step=14:3@attempt=3"
    process = run.start(slow_step, *WIDER)
    probe = LocalRunProbe(run, folder / "owned")
    with ThreadPoolExecutor(1) as thread:
        watched = thread.submit(probe.watch, process, request_after=13)
        run.wait_for(lambda s: loads_in_attempt(s, 3), "attempt 3")
        concurrent_rejection = run.rejection(folder / "other")
        watched.result()
    extended = run.finish(process)

    folders = (run.dir, folder / "other")
    rejections = [run.rejection(each, *WIDER, "spec.training.seed=5") for each in folders]
    return Lifecycle(
        run, interrupted, second_run, concurrent_rejection, extended, probe, rejections
    )


@pytest.mark.row("A30")
def test_interrupted_job_loses_zero_steps_and_has_identical_weights(
    request: pytest.FixtureRequest, lifecycle: Lifecycle
) -> None:
    assert lifecycle.interrupted.causes == ["Suspended"]
    assert lifecycle.interrupted.summary["attempts"][-1]["lostSteps"] == 0
    # Requested here, after another xdist worker had time to train it.
    undisturbed: Outcome = request.getfixturevalue("undisturbed")
    assert lifecycle.interrupted.weights == undisturbed.weights


def test_complete_job_is_not_restarted(lifecycle: Lifecycle) -> None:
    assert "is complete" in lifecycle.run.log()
    assert len(lifecycle.second_run.summary["attempts"]) == len(
        lifecycle.interrupted.summary["attempts"]
    )


@pytest.mark.row("B20")
def test_job_with_raised_total_steps_resumes_on_more_ranks(lifecycle: Lifecycle) -> None:
    assert lifecycle.extended.causes == ["Suspended"]
    assert lifecycle.extended.summary["step"] == 15
    assert lifecycle.extended.left_over == []


def test_checkpoint_folder_in_use_is_rejected(lifecycle: Lifecycle) -> None:
    assert "is in use by job drill" in lifecycle.concurrent_rejection


def test_changed_seed_is_rejected_by_job_folder_and_checkpoint(lifecycle: Lifecycle) -> None:
    for output in lifecycle.change_rejections:
        assert re.search(r"training\.seed.*0.*5", output), output


@pytest.mark.row("E6")
def test_processes_listen_on_loopback_only(lifecycle: Lifecycle) -> None:
    programs = " ".join(lifecycle.probe.ports.values())
    for expected in ("gcs_server", "raylet", "RankActor", "_Server", "raggrpo_retriever"):
        assert expected in programs
    assert lifecycle.probe.exposed == set()
    unknown = {each for each in lifecycle.probe.ports.values() if not LISTENERS.search(each)}
    assert unknown == set(), "add these processes to the table in SECURITY.md"


@pytest.mark.row("E6")
def test_requests_without_token_are_unauthorized(lifecycle: Lifecycle) -> None:
    for path in (SUBMISSIONS, "/progress", "/metrics", "/stop", "/retrieve"):
        assert 401 in lifecycle.probe.answers[path], path
        assert not {status for status in lifecycle.probe.answers[path] if 200 <= status < 400}, path
    assert not lifecycle.probe.owned.exists()


@pytest.mark.row("E6")
def test_other_users_can_read_checkpoints_but_not_other_files(lifecycle: Lifecycle) -> None:
    job, checkpoints = lifecycle.run.dir, lifecycle.run.dir.parent / "checkpoints"
    private = {path: mode_of(path) for path in (job, *job.rglob("*"), checkpoints / "logs")}
    modes = private | lifecycle.probe.modes
    assert {p: oct(m) for p, m in modes.items() if m & 0o077} == {}

    marker = next(checkpoints.rglob("COMPLETE"))
    assert mode_of(marker) == 0o644
    assert mode_of(marker.parent) == 0o755
    assert any("-weights-" in path.name for path in lifecycle.probe.modes)


def test_prompt_template_is_saved_without_expansion(lifecycle: Lifecycle) -> None:
    saved = list((lifecycle.run.dir.parent / "checkpoints").rglob("meta.json"))
    assert saved
    for meta in saved:
        assert json.loads(meta.read_text())["resume_values"]["retrieval.promptTemplate"] == TEMPLATE


@pytest.mark.row("A4")
def test_preflight_waits_for_endpoint_and_fails_at_outage_deadline(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    shorter = "recovery.deadlines.outageSeconds=2"
    output = run.rejection(tmp_path / "job", shorter, endpoint="kb=http://127.0.0.1:9/retrieve")
    assert "failed (EndpointDown): service unavailable for" in output
    assert "endpoint kb (http://127.0.0.1:9/retrieve): ConnectionRefused" in output
    assert run.left_over() == []
