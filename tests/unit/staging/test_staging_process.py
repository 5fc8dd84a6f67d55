import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingReason
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.lock import source_lock
from support.processes.waiting import wait_for
from support.servers.hub_server import HubServer
from support.staging import PART_BYTES, Stage, files_in, make_model_source

WEIGHTS = random.Random(3).randbytes(20 * PART_BYTES)
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS}
SOURCE = make_model_source("hf://org/name")


def parts_on_disk(stage: Stage) -> int:
    journals = stage.folder.rglob("*.parts")
    return sum(each.read_bytes().count(b"1") for each in journals)


def locks(stage: Stage) -> list[Path]:
    return list(stage.folder.rglob(".lock.*"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_download_resumes(hub: HubServer, stage: Stage, number: int) -> None:
    hub.add("org/name", MODEL)
    hub.seconds_per_chunk = 0.02
    run = stage.start(SOURCE)
    wait_for(lambda: parts_on_disk(stage) >= 4)
    run.process.send_signal(number)
    run.process.wait()
    parts = parts_on_disk(stage)
    assert bool(locks(stage)) is (number == signal.SIGKILL)
    hub.seconds_per_chunk = 0.0
    wait_for(hub.is_idle)
    hub.sent.clear()

    staged = stage.staged(SOURCE)

    assert files_in(Path(staged.path)) == MODEL
    assert hub.sent["model.safetensors"] == len(WEIGHTS) - parts * PART_BYTES
    assert locks(stage) == []


def test_two_processes_download_once(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    hub.seconds_per_chunk = 0.02
    runs = [stage.start(SOURCE) for _ in range(2)]
    results = [run.result().staged[0] for run in runs]

    assert results[0].path == results[1].path
    assert hub.sent["model.safetensors"] == len(WEIGHTS)
    assert sorted(each.seconds > 0 for each in results) == [False, True]
    assert any("Waiting for " in run.output() for run in runs)


def test_rate_limit_delays_one_process_and_others_use_its_result(
    hub: HubServer, stage: Stage
) -> None:
    hub.add("org/name", MODEL)
    hub.fail_once("GET /api/models/org/name", 429, {"RateLimit": '"resolvers";r=0;t=2'})
    runs = [stage.start(SOURCE) for _ in range(3)]
    assert len({run.result().staged[0].path for run in runs}) == 1
    assert hub.sent["model.safetensors"] == len(WEIGHTS)
    assert sum("Retry 1 in 2 s" in run.output() for run in runs) == 1


def test_lock_of_another_host_is_taken_over_without_heartbeat(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    path = Path(stage.staged(SOURCE).path)
    (path / ".staged.json").unlink()
    (path.parent / ".lock.7").write_text(json.dumps({"host": "pod-of-the-killed", "process": "x"}))
    run = stage.start(SOURCE)
    assert run.result().staged[0].path == str(path)
    assert "Waiting for pod-of-the-killed" in run.output()
    assert locks(stage) == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_write_that_fails_without_lock_is_reported_as_lost_lock(
    tmp_path: Path, is_lost: bool
) -> None:
    """The process that took over the lock has removed the work folder."""

    def stage() -> None:
        with source_lock(tmp_path, print, threading.Event()):
            if is_lost:
                (tmp_path / ".lock.1").unlink()
            raise StagingFailed(StagingReason.FOLDER_NOT_WRITABLE, "cannot be written to")

    with pytest.raises(StagingFailed) as caught:
        stage()
    is_reported = caught.value.reason is StagingReason.LOCK_LOST
    assert is_reported == is_lost


def test_suspended_process_loses_its_lock(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    hub.seconds_per_chunk = 0.05
    suspended = stage.start(SOURCE)
    wait_for(lambda: parts_on_disk(stage) >= 1)
    suspended.process.send_signal(signal.SIGSTOP)
    other = stage.start(SOURCE)
    wait_for(lambda: "Staging" in other.output() or other.process.poll() is not None)
    suspended.process.send_signal(signal.SIGCONT)

    assert suspended.result().failures[0].reason is StagingReason.LOCK_LOST
    assert files_in(Path(other.result().staged[0].path)) == MODEL


def test_failed_source_does_not_prevent_others(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    result = stage.start(
        make_model_source("hf://org/other"), make_model_source("hf://org/name")
    ).result()
    assert [each.reason for each in result.failures] == [StagingReason.TOKEN_MISSING]
    assert len(result.staged) == 1


def test_progress_has_size_and_remaining_time(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    hub.seconds_per_chunk = 0.05
    run = stage.start(SOURCE)
    wait_for(lambda: run.progress.exists() and '"bytesDone":0' not in run.progress.read_text())
    value = json.loads(run.progress.read_text())
    assert value["bytesTotal"] == len(WEIGHTS) + 2
    assert value["field"] == SOURCE.field
    assert run.result().staged


def test_invalid_request_is_rejected(stage: Stage) -> None:
    run = stage.start(SOURCE)
    run.kill()
    request = run.progress.with_name("request.json")
    request.write_text(request.read_text().replace("hf://", "ftp://"))
    command = [sys.executable, "-m", "raggrpo_staging", "--request", str(request)]
    done = subprocess.run(command, env=stage.env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sources.0.url: Value error, it does not start with a known scheme" in done.stderr
