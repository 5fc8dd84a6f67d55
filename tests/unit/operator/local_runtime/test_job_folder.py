import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import RestartState, SpentTime, WatchState
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.local_runtime.job_folder import JobFolder, State, write_atomically
from raggrpo_operator.local_runtime.runtime import save_driver_log
from raggrpo_operator.local_runtime.supervise import prepare
from support.builders.operator.jobs import make_job


def make_folder(tmp_path: Path, job: RagGrpoJob | None = None, **state: object) -> JobFolder:
    folder = JobFolder(tmp_path / "job")
    folder.acquire()
    folder.release()
    spec = (job or make_job()).manifest()["spec"]
    folder.save(State(uid="u1", generation=1, spec=spec, **state))  # type: ignore[arg-type]
    return folder


STARTED = JobStatus(phase=Phase.SUSPENDED, attempt=1)


def test_new_job_folder_gets_uid(tmp_path: Path) -> None:
    first, state = prepare(JobFolder(tmp_path / "a"), make_job())
    second, _ = prepare(JobFolder(tmp_path / "b"), make_job())

    assert first.metadata.uid == state.uid != ""
    assert first.metadata.uid != second.metadata.uid
    assert first.metadata.generation == 1


def test_restarted_run_restores_uid_and_status_from_job_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, status=STARTED)

    job, _ = prepare(folder, make_job())

    assert (job.metadata.uid, job.metadata.generation) == ("u1", 1)
    assert job.status == STARTED


def test_downtime_after_killed_run_is_excluded_from_active_deadline(tmp_path: Path) -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    spent = SpentTime(counted_since=noon, counted_seconds=20)
    watch = WatchState(looked=noon + timedelta(seconds=90))
    status = replace(STARTED, restart_state=RestartState(spent=spent, watch=watch))

    job, _ = prepare(make_folder(tmp_path, status=status), make_job())

    spent = job.status.restart_state.spent
    assert (spent.counted_since, spent.counted_seconds) == (None, 110)


def test_changed_spec_increments_generation(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, status=STARTED)

    job, _ = prepare(folder, make_job({"training.totalSteps": 2000}))

    assert job.metadata.generation == 2


def test_failed_job_is_retried_with_new_annotation(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, status=JobStatus(phase=Phase.FAILED), retry=2)

    job, state = prepare(folder, make_job())
    folder.save(state)
    again, _ = prepare(folder, make_job())

    assert job.metadata.annotations[ANNOTATION_RETRY] == "3"
    assert again.metadata.annotations[ANNOTATION_RETRY] == "4"


def test_retry_annotation_is_unchanged_when_job_did_not_fail(tmp_path: Path) -> None:
    job, _ = prepare(make_folder(tmp_path, status=STARTED, retry=2), make_job())

    assert job.metadata.annotations[ANNOTATION_RETRY] == "2"


def test_checkpoint_folder_may_move_with_its_newest_checkpoint(tmp_path: Path) -> None:
    newest = CheckpointRef(step=4, path="/mnt/runs/checkpoints/step_00000004.e1")
    folder = make_folder(tmp_path, status=replace(STARTED, checkpoint=newest))
    moved = make_job({"checkpoint.path": str(tmp_path / "moved")})
    with pytest.raises(OperatorError, match=r"spec\.checkpoint\.path: "):
        prepare(folder, moved)

    (tmp_path / "moved" / "step_00000004.e1").mkdir(parents=True)
    job, _ = prepare(folder, moved)
    assert job.status.checkpoint == newest


def test_spec_changes_incompatible_with_checkpoints_are_all_reported(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, status=STARTED)
    changes = {
        "training.seed": 1,
        "checkpoint.path": "/mnt/runs/other",
        "rollout.temperature": 1.0,
    }

    with pytest.raises(OperatorError) as caught:
        prepare(folder, make_job(changes))

    text = str(caught.value)
    assert 'spec.checkpoint.path: "/mnt/runs/checkpoints" → "/mnt/runs/other"' in text
    assert "spec.training.seed: 0 → 1" in text
    assert "temperature" not in text
    assert "restore them" in text
    assert "another --dir" in text
    assert not caught.value.retryable


def test_optimization_values_may_change_between_runs(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, status=STARTED)

    job, _ = prepare(folder, make_job({"rollout.n": 5, "data.trainBatchSize": 256}))

    assert job.spec.rollout.n == 5
    assert job.metadata.generation == 2


def test_spec_may_change_before_first_attempt(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, status=JobStatus(phase=Phase.FAILED))

    job, _ = prepare(folder, make_job({"rollout.temperature": 1.0}))

    assert job.spec.rollout.temperature == 1.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uid": "x"}', '{"status": {"phase": "Odd"}}'])
def test_damaged_state_file_is_reported_with_remedy(text: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder.path / "state.json").write_text(text)

    with pytest.raises(OperatorError, match=r"state\.json is damaged .*: remove it"):
        folder.load()


def test_job_folder_state_round_trip_is_lossless(tmp_path: Path) -> None:
    state = State(uid="u", generation=3, retry=1, spec={"a": 1}, mark="m", temp_dir="/t")
    state.status = STARTED
    folder = JobFolder(tmp_path)

    folder.save(state)

    assert folder.load() == state


def test_second_run_is_rejected_with_process_id(tmp_path: Path) -> None:
    first, second = JobFolder(tmp_path), JobFolder(tmp_path)
    first.acquire()

    with pytest.raises(OperatorError, match=f"process {os.getpid()}"):
        second.acquire()

    first.release()
    second.acquire()
    second.release()


def test_job_folder_lock_is_released_when_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path\n"
        "from raggrpo_operator.local_runtime.job_folder import JobFolder\n"
        "JobFolder(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)

    folder = JobFolder(tmp_path)
    folder.acquire()
    folder.release()


def test_job_folder_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"

    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, "new")
        assert reader.read() == "old"

    assert path.read_text() == "new"
    assert [child.name for child in path.parent.iterdir()] == ["file.json"]


def test_unwritable_job_folder_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OperatorError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "state.json", "")


def test_job_file_contains_local_paths(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)

    folder.save_job(make_job())

    assert "path: /mnt/runs/model" in (folder.path / "job.yaml").read_text()


def test_incomplete_driver_log_copy_is_replaced(tmp_path: Path) -> None:
    live = tmp_path / "temp" / "driver-2.log"
    copy = tmp_path / "checkpoints" / "logs" / "attempts" / "2" / "driver.log"
    for path, text in ((live, "first lines, last lines"), (copy, "first lines")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    ended = JobStatus(attempt=2, attempts=[AttemptRecord(number=2, cause=Cause.HEAD_LOST)])

    save_driver_log(ended, tmp_path / "temp", tmp_path / "checkpoints" / "logs")

    assert copy.read_text() == "first lines, last lines"


def test_driver_log_is_copied_after_attempt(tmp_path: Path) -> None:
    live = tmp_path / "temp" / "driver-2.log"
    live.parent.mkdir(parents=True)
    live.write_text("half")
    copy = tmp_path / "checkpoints" / "logs" / "attempts" / "2" / "driver.log"
    running = JobStatus(attempt=2, attempts=[AttemptRecord(number=2)])
    ended = JobStatus(attempt=2, attempts=[AttemptRecord(number=2, cause=Cause.STALLED)])

    save_driver_log(running, tmp_path / "temp", tmp_path / "checkpoints" / "logs")
    assert not copy.exists()
    live.write_text("whole")
    save_driver_log(ended, tmp_path / "temp", tmp_path / "checkpoints" / "logs")

    assert copy.read_text() == "whole"
