import errno
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict_loader import load

from raggrpo_api.names import EXPORT_DIR
from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint.folder import Checkpoint, CheckpointName, Marker, sync
from raggrpo_trainer.checkpoint.hashing_save import save_hashed
from raggrpo_trainer.checkpoint.store import CheckpointStore, SavePhase, retained_names
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import (
    SaveShards,
    is_whole,
    make_claim,
    make_meta,
    make_store,
    shards,
)
from support.fakes.unexpected_exit import FORK, count_calls, kill_at

KILL_POINTS = int(os.environ.get("KILL_POINTS", "40"))
"""Number of kills per kill test."""


def steps(store: CheckpointStore) -> list[int]:
    return [c.marker.step for c in store.checkpoints]


def damaged(store: CheckpointStore) -> list[str]:
    """Return the reasons of skipped checkpoints, except of those whose save was killed."""
    reasons = [each.reason for each in store.skipped]
    return [each for each in reasons if not each.startswith("COMPLETE is missing: the save is")]


def folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.glob("step_*"))


def test_saved_checkpoint_is_discovered_with_its_content(tmp_path: Path) -> None:
    fence = make_claim(tmp_path, attempt=3)
    saved = make_store(fence).save(make_meta(40), shards(40), score=0.25)

    [checkpoint] = make_store(fence).checkpoints

    assert checkpoint == saved
    assert is_whole(checkpoint)
    marker = checkpoint.marker
    assert (marker.step, marker.epoch, marker.attempt, marker.world_size) == (40, 1, 3, 2)
    assert (marker.config_hash, marker.score) == ("config-hash", 0.25)
    assert set(marker.files) == {"__0_0.distcp", "__1_0.distcp", "meta.json"}
    assert checkpoint.ref().model_dump() == {
        "step": 40,
        "path": str(tmp_path / "step_00000040.e1"),
        "time": marker.time,
        "world_size": 2,
    }


def test_newest_checkpoint_has_highest_step_then_epoch(tmp_path: Path) -> None:
    first = make_store(make_claim(tmp_path))
    first.save(make_meta(9), shards(9))
    first.save(make_meta(10), shards(10))
    second = make_store(make_claim(tmp_path, attempt=2))
    second.save(make_meta(9), shards(9))
    names = [str(c.name) for c in second.checkpoints]

    assert names == ["step_00000010.e1", "step_00000009.e2", "step_00000009.e1"]


def test_checkpoint_step_is_saved_once_per_attempt(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    saved = store.save(make_meta(10), shards(10))
    assert store.save(make_meta(10), lambda folder: pytest.fail("was written again")) is saved


def test_torch_shards_are_saved_and_loaded(tmp_path: Path) -> None:
    weight = torch.arange(6.0)
    store = make_store(make_claim(tmp_path))

    def write(folder: Path) -> dict[str, str]:
        return save_hashed({"w": weight}, folder)

    saved = store.save(make_meta(10), write)

    loaded = {"w": torch.zeros(6)}
    load(loaded, checkpoint_id=saved.folder)

    assert ".metadata" in saved.marker.files
    assert torch.equal(loaded["w"], weight)


# --- damaged checkpoints ----------------------------------------------------------------------


def _damage_shard(folder: Path) -> None:
    os.truncate(folder / "__1_0.distcp", 2999)


def _damage_marker_step(folder: Path) -> None:
    marker = json.loads((folder / "COMPLETE").read_text())
    (folder / "COMPLETE").write_text(json.dumps(marker | {"step": 21}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_damage_shard, "__1_0.distcp has 2999 bytes instead of 3000"),
        (lambda folder: (folder / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
        (lambda folder: (folder / "meta.json").unlink(), "meta.json is missing"),
        (lambda folder: os.truncate(folder / "COMPLETE", 40), "COMPLETE is unreadable: "),
        (lambda folder: os.truncate(folder / "COMPLETE", 0), "COMPLETE is unreadable: "),
        (lambda folder: (folder / "COMPLETE").write_text("[]"), "COMPLETE is unreadable: "),
        (
            lambda folder: (folder / "COMPLETE").write_bytes(b"\xff"),
            "COMPLETE is unreadable: Invalid JSON: ",
        ),
        (_damage_marker_step, "COMPLETE is unreadable: it contains step 21, epoch 1"),
        (
            lambda folder: (folder / "meta.json").write_bytes(
                b" " * (folder / "meta.json").stat().st_size
            ),
            "meta.json is unreadable: ",
        ),
        (lambda folder: (folder / "REJECTED").write_text("NaN"), "rejected: NaN"),
    ],
)
def test_damaged_checkpoint_is_skipped_with_reason(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    store = make_store(make_claim(tmp_path))
    store.save(make_meta(10), shards(10))
    newest = store.save(make_meta(20), shards(20))
    damage(newest.folder)
    resumed = make_store(make_claim(tmp_path, attempt=2))

    assert steps(resumed) == [10]
    [skipped] = resumed.skipped
    assert skipped.path == str(newest.folder)
    assert skipped.reason.startswith(reason)
    assert "None" not in skipped.reason


def test_file_descriptors_are_closed_after_sync(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        sync(tmp_path)

    assert len(os.listdir("/proc/self/fd")) == before


def test_folder_without_marker_is_skipped_and_removed_by_clean_up(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    kept_one = store.save(make_meta(10), shards(10))
    torn = store.save(make_meta(20), shards(20))
    (torn.folder / "COMPLETE").unlink()
    resumed = make_store(make_claim(tmp_path, attempt=2))
    resumed.clean_up()
    resumed.save(make_meta(15), shards(15))

    assert steps(resumed) == [15, 10]
    [skipped] = resumed.skipped
    assert skipped.path == str(torn.folder)
    assert skipped.reason == "COMPLETE is missing: the save is incomplete, or the file was deleted"
    assert kept_one.folder.name in folders(tmp_path)
    assert torn.folder.name not in folders(tmp_path)


def test_rejected_checkpoint_is_skipped_by_later_attempts(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    store.save(make_meta(10), shards(10))
    store.reject(store.save(make_meta(20), shards(20), score=1.0), "a shard cannot be read")

    for later in (store, make_store(make_claim(tmp_path, attempt=2))):
        assert steps(later) == [10]
        assert later.best is None
        assert [s.reason for s in later.skipped] == ["rejected: a shard cannot be read"]


# --- failed saves -----------------------------------------------------------------------------


def _full_disk(folder: Path) -> dict[str, str]:
    shards(20)(folder)
    with open("/dev/full", "wb", buffering=0) as device:
        device.write(b"x")
    return {}


def _io_error(folder: Path) -> dict[str, str]:
    shards(20)(folder)
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder / "__0_0.distcp"))


class FromRank(OSError):
    """Error of a rank as raised by Ray: an OSError without errno, caused by the original error."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"ray::RankActor.save() {cause}")
        self.cause = cause


def _full_disk_at_a_rank(folder: Path) -> dict[str, str]:
    raise FromRank(OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize(
    ("failing", "code", "words"),
    [
        (_full_disk, ExitCode.VOLUME_FULL, r"the volume at /\S* has .* free; enlarge the volume"),
        (
            _full_disk_at_a_rank,
            ExitCode.VOLUME_FULL,
            r"cannot write \S*step_00000020.e1: the volume",
        ),
        (_io_error, ExitCode.CHECKPOINT_WRITE_FAILED, r"step_00000020.e1 \(EIO\): .*__0_0.dist"),
    ],
)
def test_failed_save_reports_cause_and_keeps_older_checkpoints(
    tmp_path: Path, failing: SaveShards, code: ExitCode, words: str
) -> None:
    store = make_store(make_claim(tmp_path), keep_last=1)
    store.save(make_meta(10), shards(10))
    with pytest.raises(TrainerError, match=words) as failure:
        store.save(make_meta(20), failing)

    assert failure.value.exit_code is code
    assert folders(tmp_path) == ["step_00000010.e1"]
    assert is_whole(store.checkpoints[0])
    assert is_whole(store.save(make_meta(30), shards(30)))


def test_trainer_error_during_save_propagates(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))

    def rank_lost(folder: Path) -> dict[str, str]:
        shards(10)(folder)
        raise TrainerError(ExitCode.TRAINER_RANK_LOST, "rank 1 died")

    with pytest.raises(TrainerError, match="rank 1 died"):
        store.save(make_meta(10), rank_lost)
    assert folders(tmp_path) == []


@pytest.mark.row("B19")
def test_save_without_disk_space_fails_before_writing(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))

    def sparse(folder: Path) -> dict[str, str]:
        (folder / "__0_0.distcp").touch()
        os.truncate(folder / "__0_0.distcp", 4 << 40)  # sparse: 4 TiB without blocks
        return {"__0_0.distcp": "0" * 64}

    store.save(make_meta(10), sparse)

    volume = next(each for each in (tmp_path, *tmp_path.parents) if each.is_mount())
    message = rf"needs 4915.20 GiB: the volume at {volume} has"
    with pytest.raises(TrainerError, match=message) as raised:
        store.save(make_meta(20), lambda folder: pytest.fail("writing started"))
    assert raised.value.exit_code is ExitCode.VOLUME_FULL


def test_superseded_attempt_does_not_save_or_remove_checkpoints(tmp_path: Path) -> None:
    def next_attempt_claims(phase: SavePhase, step: int) -> None:
        if (phase, step) == (SavePhase.SHARDS, 20):
            make_claim(tmp_path, attempt=2)

    store = make_store(make_claim(tmp_path), keep_last=1, reached=next_attempt_claims)
    store.save(make_meta(10), shards(10))

    writes: list[Path] = []

    def record(folder: Path) -> dict[str, str]:
        writes.append(folder)
        return {}

    for write in (shards(20), record):
        with pytest.raises(TrainerError) as raised:
            store.save(make_meta(20), write)
        assert raised.value.exit_code is ExitCode.SUPERSEDED
    assert writes == []
    assert folders(tmp_path) == ["step_00000010.e1"]


def test_leftovers_of_failed_save_are_not_in_next_save(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    (tmp_path / "step_00000010.e1").mkdir()
    (tmp_path / "step_00000010.e1" / "remains").write_text("x")
    assert "remains" not in store.save(make_meta(10), shards(10)).marker.files


# --- retention --------------------------------------------------------------------------------


def make_checkpoint(step: int, epoch: int, score: float | None) -> Checkpoint:
    marker = Marker(step, epoch, 1, 1, "", "", score, {})
    return Checkpoint(Path(str(CheckpointName(step, epoch))), marker, make_meta(step))


scores = st.none() | st.floats(allow_infinity=False)
checkpoint_lists = st.lists(
    st.builds(make_checkpoint, st.integers(1, 9), st.integers(1, 3), scores),
    min_size=1,
    max_size=12,
    unique_by=lambda c: c.name,
)


@pytest.mark.row("A22")
@settings(deadline=None)
@given(checkpoint_lists, st.integers(1, 5), st.booleans())
def test_retention_keeps_newest_and_best(
    checkpoints: list[Checkpoint], keep_last: int, keep_best: bool
) -> None:
    keep = retained_names(checkpoints, keep_last, BestBy.REWARD if keep_best else None)

    newest_first = sorted((c.name for c in checkpoints), reverse=True)
    scored = [
        c for c in checkpoints if c.marker.score is not None and c.marker.score == c.marker.score
    ]
    assert set(newest_first[:keep_last]) <= keep <= set(newest_first)
    assert len(keep) <= keep_last + keep_best
    if keep_best and scored:
        best = max(c.marker.score or 0.0 for c in scored)
        assert any(c.name in keep and c.marker.score == best for c in scored)


def test_scores_of_other_metrics_are_not_compared(tmp_path: Path) -> None:
    by_reward = make_store(make_claim(tmp_path), keep_last=2)
    by_reward.save(make_meta(10), shards(10), score=7.5)
    by_reward.save(make_meta(20), shards(20), score=0.1)
    edited = make_claim(tmp_path, attempt=2)
    by_match = make_store(edited, keep_last=2, best_by=BestBy.VALIDATION_EXACT_MATCH)
    assert by_match.best is None

    by_match.save(make_meta(30), shards(30), score=0.5)
    by_match.save(make_meta(40), shards(40), score=0.25)
    by_match.save(make_meta(50), shards(50), score=0.5)
    by_match.save(make_meta(60), shards(60))

    assert by_match.best is not None
    assert by_match.best.marker.step == 50  # the newest of equal scores
    assert steps(by_match) == [60, 50]
    again = make_store(make_claim(tmp_path, attempt=3), best_by=BestBy.VALIDATION_EXACT_MATCH).best
    assert again == by_match.best


@pytest.mark.row("A28")
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["save", "fail", "restart"]), st.integers(0, 9))),
    st.integers(1, 3),
)
def test_retention_invariants_hold_for_any_history(
    history: list[tuple[str, int]], keep_last: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        store = make_store(make_claim(path), keep_last=keep_last)
        done: list[tuple[int, int]] = []
        for step, (event, score) in enumerate(history, 1):
            if event == "save":
                store.save(make_meta(step), shards(step), score=score)
                done.append((step, score))
            elif event == "fail":
                with pytest.raises(TrainerError):
                    store.save(make_meta(step), _io_error)
            else:
                store = make_store(make_claim(path), keep_last=keep_last)
                store.clean_up()
            best = max(done, key=lambda save: (save[1], save[0]), default=(0, 0))[0]
            expected = {s for s, _ in done[-keep_last:]} | ({best} if done else set())
            assert {int(f[5:13]) for f in folders(path)} == expected
            assert all(is_whole(c) for c in store.checkpoints)
            assert steps(store) == sorted(expected, reverse=True)


def test_unusable_checkpoints_are_removed_when_enough_newer_ones_exist(
    tmp_path: Path,
) -> None:
    store = make_store(make_claim(tmp_path), keep_last=2)
    store.reject(store.save(make_meta(10), shards(10)), "NaN")
    (store.save(make_meta(15), shards(15)).folder / "COMPLETE").unlink()
    _damage_shard(store.save(make_meta(20), shards(20)).folder)
    store.save(make_meta(30), shards(30))
    assert len(folders(tmp_path)) == 4
    store.save(make_meta(40), shards(40))

    assert folders(tmp_path) == ["step_00000030.e1", "step_00000040.e1"]

    _damage_shard(store.save(make_meta(50), shards(50)).folder)
    store.save(make_meta(60), shards(60))
    left = ["step_00000040.e1", "step_00000050.e1", "step_00000060.e1"]
    assert folders(tmp_path) == left  # only older checkpoints are removed


def exported(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(text)

    return write


def test_export_replaces_previous_export_atomically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(make_claim(tmp_path))
    for text in ("one", "two"):
        assert store.export(exported(text)) == tmp_path / EXPORT_DIR
        assert (tmp_path / EXPORT_DIR / "model.safetensors").read_text() == text
        assert list(tmp_path.glob("*.tmp")) == []

    def full(folder: Path) -> None:
        exported("half")(folder)
        raise OSError(errno.ENOSPC, "full")

    def superseded(folder: Path) -> None:
        exported("late")(folder)
        make_claim(tmp_path, attempt=2)

    for write, code in ((full, ExitCode.VOLUME_FULL), (superseded, ExitCode.SUPERSEDED)):
        with pytest.raises(TrainerError) as raised:
            store.export(write)
        assert raised.value.exit_code is code
        assert (tmp_path / EXPORT_DIR / "model.safetensors").read_text() == "two"

    next_attempt = make_store(make_claim(tmp_path, attempt=3))
    next_attempt.clean_up()
    assert list(tmp_path.glob("*.tmp")) == []

    def held_open(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "a reader has the old export open")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", held_open)
        next_attempt.export(exported("three"))
    assert (tmp_path / EXPORT_DIR / "model.safetensors").read_text() == "three"


def test_oldest_checkpoint_remains_usable_when_all_are_rejected(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    saved = [store.save(make_meta(step), shards(step)) for step in (10, 20)]
    store.reject_all([str(each.folder) for each in saved], "NaN")
    assert [each.meta.step for each in store.checkpoints] == [10]
    assert [each.reason for each in store.skipped] == ["rejected: NaN"]


def test_rejected_checkpoint_is_kept_until_newer_ones_exist(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path), keep_last=1)
    store.save(make_meta(10), shards(10))
    store.reject(store.save(make_meta(20), shards(20)), "NaN")

    store.save(make_meta(15), shards(15))
    assert folders(tmp_path) == ["step_00000015.e1", "step_00000020.e1"]
    store.save(make_meta(25), shards(25))
    assert folders(tmp_path) == ["step_00000025.e1"]


def test_failed_removal_of_old_checkpoint_is_reported(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path), keep_last=1)
    old = store.save(make_meta(10), shards(10))
    (old.folder / "COMPLETE").unlink()
    (old.folder / "COMPLETE").mkdir()  # unlink fails, also for root

    with pytest.raises(TrainerError, match=r"cannot write .*step_00000010.e1") as failure:
        store.save(make_meta(20), shards(20))
    assert failure.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
    assert steps(make_store(make_claim(tmp_path, attempt=2))) == [20]


# --- kills at any point -----------------------------------------------------------------------


def make_history(path: Path) -> None:
    """Save steps 10 and 20, of which 10 is the best; `save` with keepLast 1 removes step 20."""
    fence = make_claim(path)
    make_store(fence, keep_last=2).save(make_meta(10), shards(10), score=0.9)
    make_store(fence, keep_last=2).save(make_meta(20), shards(20), score=0.1)


def save(path: Path) -> None:
    store = make_store(make_claim(path, attempt=2), keep_last=1)
    store.save(make_meta(30), shards(30), score=0.5)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a checkpoint path, and the number of calls per save in it."""
    path = tmp_path_factory.mktemp("history") / "ckpt"
    make_history(path)
    rehearsal = path.with_name("rehearsal")
    shutil.copytree(path, rehearsal)
    calls = count_calls(save, rehearsal)
    assert folders(rehearsal) == ["step_00000010.e1", "step_00000030.e2"]
    return path, calls


@pytest.mark.row("A28")
@pytest.mark.parametrize("point", range(KILL_POINTS))
def test_kill_during_save_keeps_last_checkpoint(
    tmp_path: Path, history: tuple[Path, int], point: int
) -> None:
    original, calls = history
    path = tmp_path / "ckpt"
    shutil.copytree(original, path)

    kill_at(point / KILL_POINTS + random.Random(point).random() / KILL_POINTS, calls, save, path)

    store = make_store(make_claim(path, attempt=3), keep_last=1)
    assert damaged(store) == []
    assert store.newest is not None
    assert store.newest.marker.step in (20, 30)
    assert 10 in steps(store)  # the best
    assert all(is_whole(c) for c in store.checkpoints)
    store.clean_up()
    store.save(make_meta(40), shards(40))
    assert steps(store) == [40, 10]
    assert len(folders(path)) == 2


def save_forever(path: Path, attempt: int, events: Connection) -> None:
    store = make_store(make_claim(path, attempt=attempt), keep_last=1, keep_best=False)
    store.clean_up()
    step = store.newest.marker.step if store.newest else 0
    events.send_bytes(b"started")
    while True:
        step += 1
        store.save(make_meta(step), shards(step))
        events.send_bytes(b"saved")


def test_complete_checkpoints_survive_random_kills(tmp_path: Path) -> None:
    chance = random.Random(0)
    reached = 0
    for attempt in range(1, KILL_POINTS + 1):
        # Not an event: a killed process may hold its lock.
        events, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=save_forever, args=(tmp_path, attempt, sender))
        process.start()
        for _ in range(1 if attempt % 3 else 2):
            assert events.poll(60)
            events.recv_bytes()
        process.join(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        saved = attempt % 3 == 0 or events.poll()

        store = make_store(make_claim(tmp_path))
        assert damaged(store) == []
        assert all(is_whole(c) for c in store.checkpoints)
        step = store.newest.marker.step if store.newest else 0
        assert step >= reached + saved
        reached = step
    assert reached >= KILL_POINTS // 3
