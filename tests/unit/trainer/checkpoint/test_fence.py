import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint.fence import live_job, validity
from raggrpo_trainer.checkpoint.folder import Validity
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import (
    NO_BEAT,
    is_whole,
    make_claim,
    make_meta,
    make_store,
    shards,
)

FORK = multiprocessing.get_context("fork")
FAST = 0.05
"""Seconds between beats."""
RIVAL = 0.8
"""Seconds between beats, so long that a slow machine does not count as a dead job."""
PATIENT = 5.0
"""Seconds between beats for a claim that is rejected at the next beat of the other job."""


@contextmanager
def make_process(target: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run `target` in a second process; terminate it at the end of the block."""
    process = FORK.Process(target=target, args=arguments)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


def hold(path: Path, uid: str) -> None:
    make_claim(path, uid=uid, job=f"{uid}-job", beat_seconds=FAST)
    (path / "holding").touch()
    signal.pause()


@contextmanager
def another_job(path: Path) -> Iterator[int]:
    with make_process(hold, path, "other") as pid:
        wait_until((path / "holding").exists)
        yield pid


def test_claim_gets_next_epoch_and_supersedes_previous_attempt(tmp_path: Path) -> None:
    first = make_claim(tmp_path, attempt=1)
    first.check()
    second = make_claim(tmp_path, attempt=2)

    assert (first.epoch, second.epoch) == (1, 2)
    second.check()
    with pytest.raises(TrainerError, match=r"job demo \(attempt 2 on .* \(epoch 2\)") as raised:
        first.check()
    assert raised.value.exit_code is ExitCode.SUPERSEDED


def test_claim_identifies_job_attempt_and_process(tmp_path: Path) -> None:
    make_claim(tmp_path, uid="u", job="j", attempt=4)
    claim = json.loads((tmp_path / "fence" / "00000001").read_text())
    assert claim.items() >= {"job_uid": "u", "job_name": "j", "attempt": 4}.items()
    assert claim["pid"] == os.getpid()
    files = sorted(file.name for file in (tmp_path / "fence").iterdir())
    assert files == ["00000001", "00000001.accepts", "00000001.beat"]


def _run_at_once(number: int, target: Callable[..., None], path: Path) -> None:
    barrier = FORK.Barrier(number)
    processes = [FORK.Process(target=target, args=(path, barrier, i)) for i in range(number)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)


def _claim_often(path: Path, barrier: "multiprocessing.synchronize.Barrier", number: int) -> None:
    barrier.wait(20)
    epochs = [make_claim(path, attempt=number).epoch for _ in range(6)]
    (path / f"result-{number}").write_text(json.dumps(epochs))


def test_concurrent_claims_get_distinct_epochs(tmp_path: Path) -> None:
    _run_at_once(8, _claim_often, tmp_path)
    epochs = [e for i in range(8) for e in json.loads((tmp_path / f"result-{i}").read_text())]
    assert sorted(epochs) == list(range(1, 49))
    assert not list((tmp_path / "fence").glob("*.tmp"))


def _claim_as(path: Path, barrier: "multiprocessing.synchronize.Barrier", number: int) -> None:
    barrier.wait(20)
    try:
        make_claim(path, uid=f"uid-{number}", job=f"job-{number}", beat_seconds=RIVAL)
        result = "won"
    except TrainerError as error:
        result = error.exit_code.name
    (path / f"result-{number}").write_text(result)
    barrier.wait(60)  # stay alive until all processes have a result


def test_concurrent_jobs_on_one_checkpoint_path_have_one_winner(tmp_path: Path) -> None:
    with another_job(tmp_path):
        pass  # killed by SIGKILL
    _run_at_once(4, _claim_as, tmp_path)
    results = sorted((tmp_path / f"result-{i}").read_text() for i in range(4))
    assert results == [ExitCode.CHECKPOINT_PATH_IN_USE.name] * 3 + ["won"]


def test_checkpoint_path_of_live_job_is_rejected_as_in_use(tmp_path: Path) -> None:
    with another_job(tmp_path):
        assert live_job(tmp_path, "mine", beat_seconds=PATIENT) == "other-job"
        assert live_job(tmp_path, "other", beat_seconds=PATIENT) is None
        with pytest.raises(TrainerError, match=r"in use by job other-job .*delete or") as raised:
            make_claim(tmp_path, uid="mine", beat_seconds=PATIENT)

    assert raised.value.exit_code is ExitCode.CHECKPOINT_PATH_IN_USE
    assert not (tmp_path / "fence" / "00000002").exists()


def test_checkpoint_path_claimed_later_by_live_job_is_rejected_as_in_use(tmp_path: Path) -> None:
    make_claim(tmp_path, uid="mine").release()
    with another_job(tmp_path):
        assert live_job(tmp_path, "mine", beat_seconds=PATIENT) == "other-job"
        with pytest.raises(TrainerError, match="in use by job other-job"):
            make_claim(tmp_path, uid="mine", beat_seconds=PATIENT)


def test_checkpoint_path_of_killed_job_can_be_claimed(tmp_path: Path) -> None:
    with another_job(tmp_path):
        pass  # killed by SIGKILL

    assert live_job(tmp_path, "mine", beat_seconds=FAST) is None
    fence = make_claim(tmp_path, uid="mine", beat_seconds=FAST)
    fence.release()
    assert fence.epoch == 2


def test_job_is_considered_dead_after_two_and_a_half_heartbeat_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_claim(tmp_path, uid="silent")
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr("raggrpo_trainer.checkpoint.fence.time", clock)

    assert live_job(tmp_path, "mine", beat_seconds=60) is None
    assert sum(slept) == 150
    assert len(slept) >= 5  # a live job is noticed soon after its beat


def test_released_path_is_claimed_without_heartbeat_wait(tmp_path: Path) -> None:
    make_claim(tmp_path, uid="former").release()
    assert live_job(tmp_path, "mine", beat_seconds=NO_BEAT) is None
    assert make_claim(tmp_path, uid="mine", beat_seconds=NO_BEAT).epoch == 2


def test_fence_release_ignores_missing_fence_files(tmp_path: Path) -> None:
    fence = make_claim(tmp_path, beat_seconds=NO_BEAT)
    for file in (tmp_path / "fence").iterdir():
        file.unlink()

    fence.release()

    assert live_job(tmp_path, "mine", beat_seconds=NO_BEAT) is None


def test_fence_release_stops_heartbeat_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    fence = make_claim(tmp_path)
    [beating] = set(threading.enumerate()) - before
    fence.release()
    beating.join(20)
    assert not beating.is_alive()


def test_fence_check_fails_after_claim_by_another_job(tmp_path: Path) -> None:
    former = make_claim(tmp_path, uid="former")
    former.release()
    make_claim(tmp_path, uid="new", job="newcomer")

    with pytest.raises(TrainerError, match="in use by job newcomer") as raised:
        former.check()
    assert raised.value.exit_code is ExitCode.CHECKPOINT_PATH_IN_USE


def test_recreated_job_accepts_checkpoints_of_its_deleted_predecessor(tmp_path: Path) -> None:
    deleted = make_claim(tmp_path, uid="deleted")
    make_store(deleted).save(make_meta(10), shards(10))
    deleted.release()
    recreated = make_store(make_claim(tmp_path, uid="recreated"))

    assert recreated.newest is not None
    assert str(recreated.newest.name) == "step_00000010.e1"


def save_and_freeze(path: Path, where: str) -> None:
    """Save two checkpoints; freeze within the second save like a suspended machine."""

    def freeze() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def freeze_at_phase(phase: str, step: int) -> None:
        if (phase, step) == (where, 20):
            freeze()

    def freeze_at_rename(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename" and str(arguments[1]).endswith("step_00000020.e1/COMPLETE"):
            freeze()

    store = make_store(make_claim(path), keep_last=1, keep_best=False, reached=freeze_at_phase)
    store.save(make_meta(10), shards(10))
    if where == "marker":  # after the last fence check
        sys.addaudithook(freeze_at_rename)
    store.save(make_meta(20), shards(20))


@pytest.mark.parametrize("where", ["shards", "complete", "marker", "retention"])
def test_checkpoint_completed_by_frozen_attempt_is_ignored(tmp_path: Path, where: str) -> None:
    late_marker = tmp_path / "step_00000020.e1" / "COMPLETE"
    with make_process(save_and_freeze, tmp_path, where) as frozen:
        _, status = os.waitpid(frozen, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        expected = 20 if where == "retention" else 10  # the save completes before retention
        assert late_marker.exists() == (where == "retention")
        successor = make_store(make_claim(tmp_path, attempt=2))
        os.kill(frozen, signal.SIGCONT)
        os.waitpid(frozen, 0)

    assert late_marker.exists() == (where in ("marker", "retention"))
    assert (tmp_path / "step_00000010.e1").exists()  # nor does the resumed process remove anything
    later = [make_store(make_claim(tmp_path, attempt=number)) for number in (3, 4)]
    for store in (successor, *later):
        assert store.newest is not None
        assert store.newest.marker.step == expected
        assert is_whole(store.newest)
    skipped = [Path(s.path).name for s in later[-1].skipped]
    assert skipped == (["step_00000020.e1"] if where == "marker" else [])


def test_claim_without_accepts_list_does_not_change_checkpoint_validity(tmp_path: Path) -> None:
    make_store(make_claim(tmp_path)).save(make_meta(10), shards(10))
    make_claim(tmp_path, attempt=2)
    (tmp_path / "fence" / "00000002.accepts").unlink()
    assert validity(tmp_path).epoch == 1
    assert make_claim(tmp_path, attempt=3).validity.accepted == {"step_00000010.e1"}


def test_checkpoint_validity_follows_latest_accepts_list(tmp_path: Path) -> None:
    make_store(make_claim(tmp_path)).save(make_meta(10), shards(10))
    make_store(make_claim(tmp_path, attempt=2)).save(make_meta(20), shards(20))
    (tmp_path / "step_00000010.e1").rename(tmp_path / "step_00000030.e1")
    assert make_claim(tmp_path, attempt=3).validity.accepted == {"step_00000020.e2"}


def test_copied_checkpoints_are_valid_and_precede_next_epoch(tmp_path: Path) -> None:
    make_store(make_claim(tmp_path / "a")).save(make_meta(10), shards(10))
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "step_00000010.e1").rename(tmp_path / "b" / "step_00000010.e7")
    fence = make_claim(tmp_path / "b")

    assert fence.epoch == 8
    assert fence.validity.accepted == {"step_00000010.e7"}


def test_checkpoints_without_claims_are_valid(tmp_path: Path) -> None:
    make_store(make_claim(tmp_path)).save(make_meta(10), shards(10))
    shutil.rmtree(tmp_path / "fence")
    assert validity(tmp_path) == Validity(0, frozenset({"step_00000010.e1"}))


def test_fence_check_fails_when_claim_is_deleted(tmp_path: Path) -> None:
    fence = make_claim(tmp_path)
    (tmp_path / "fence" / "00000001").unlink()
    with pytest.raises(TrainerError, match="was deleted") as raised:
        fence.check()
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED


def test_fence_check_fails_after_heartbeat_error_until_next_heartbeat(tmp_path: Path) -> None:
    fence = make_claim(tmp_path, beat_seconds=FAST)
    beat = tmp_path / "fence" / "00000001.beat"
    beat.unlink()

    def fails() -> bool:
        try:
            fence.check()
        except TrainerError as error:
            return error.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED and "heartbeat" in str(error)
        return False

    wait_until(fails)
    beat.write_bytes(b"")
    wait_until(lambda: not fails())
    assert int(beat.read_bytes()) > 0
    fence.release()
    assert not beat.exists()


def test_unwritable_checkpoint_path_is_named_in_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match=r"file/ckpt: .*make it writable") as raised:
        make_claim(tmp_path / "file" / "ckpt")
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED


def test_live_job_is_none_for_missing_path(tmp_path: Path) -> None:
    assert live_job(tmp_path / "new", "uid-1") is None
