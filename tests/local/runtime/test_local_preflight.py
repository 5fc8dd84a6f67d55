import signal
import subprocess
import time
from pathlib import Path

import pytest

from raggrpo_operator.local_runtime import warden
from raggrpo_operator.local_runtime.job_folder import JobFolder
from support.builders.operator.local_job import LocalJob, kill


def is_checking(job: LocalJob) -> bool:
    return bool(job.state["mark"] and warden.marked_processes(f"{job.state['mark']}.preflight"))


def checking(folder: Path) -> tuple[LocalJob, "subprocess.Popen[str]"]:
    """Start a run whose checks hang and wait until they hang."""
    job = LocalJob(folder)
    process = job.start(hang=True)
    job.wait_for(lambda: is_checking(job), process)
    return job, process


@pytest.mark.row("A12")
@pytest.mark.parametrize(
    ("check", "exit_code"), [("DataColumns", 3), ("RetrievalReachable", 4), ("RewardCode", 5)]
)
def test_failed_check_sets_exit_code_and_prints_evidence(
    check: str, exit_code: int, tmp_path: Path
) -> None:
    job = LocalJob(tmp_path)
    code, output = job.run(check=check, evidence="the evidence", exit_code=exit_code)

    assert code == exit_code, output
    assert f"{check}: the evidence" in output
    assert "Traceback" not in output
    assert not (job.dir / "logs" / "ray-c1.log").exists()
    assert warden.marked_processes(job.state["mark"]) == []


def test_next_run_repeats_preflight_after_failed_check(tmp_path: Path) -> None:
    job = LocalJob(tmp_path)
    job.run(check="Paths", evidence="first", exit_code=4)
    code, output = job.run(check="Paths", evidence="second", exit_code=4)
    assert code == 4
    assert "Paths: second" in output


def test_preflight_crash_fails_run_and_prints_preflight_output(tmp_path: Path) -> None:
    code, output = LocalJob(tmp_path).run(broken=True)
    assert code == 4, output
    assert "preflight is broken on order" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_during_preflight_suspends_immediately(
    number: signal.Signals, tmp_path: Path
) -> None:
    job, process = checking(tmp_path)
    process.send_signal(number)
    code, output = job.end_of(process)

    assert code == 130, output
    assert job.state["status"]["phase"] == "Suspended"
    assert warden.marked_processes(job.state["mark"]) == []


def test_run_under_nohup_ignores_hangup(tmp_path: Path) -> None:
    job = LocalJob(tmp_path)
    job.signals = "--ignore-signal=HUP"
    process = job.start(hang=True)
    job.wait_for(lambda: is_checking(job), process)

    process.send_signal(signal.SIGHUP)
    time.sleep(2)  # a suspension would be printed at once
    goes_on = is_checking(job)
    process.send_signal(signal.SIGTERM)

    assert job.end_of(process)[0] == 130
    assert goes_on


def test_next_run_repeats_preflight_after_kill(tmp_path: Path) -> None:
    job, process = checking(tmp_path)
    kill(process)
    job.wait_until_gone()
    code, output = job.run(check="Paths", evidence="next", exit_code=4)

    assert code == 4
    assert "Paths: next" in output


def test_second_run_on_job_folder_is_rejected_with_pid(tmp_path: Path) -> None:
    job, process = checking(tmp_path)
    code, output = job.run(hang=True)
    process.send_signal(signal.SIGINT)
    job.end_of(process)

    assert code == 2
    assert f"another `raggrpo run` (process {process.pid})" in output
    assert "--dir" in output


def test_hangup_suspends_job_after_output_is_closed(tmp_path: Path) -> None:
    job, process = checking(tmp_path)
    assert process.stdout is not None

    process.stdout.close()  # like a closed terminal
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert JobFolder(job.dir).load().status.phase == "Suspended"
