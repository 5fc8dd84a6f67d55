"""Checkpoints and claims after a power cut between any two disk operations."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raggrpo_api.names import EXPORT_DIR
from raggrpo_trainer.checkpoint.fence import validity
from raggrpo_trainer.checkpoint.file_digests import StoredFile, file_sizes, stored_files
from raggrpo_trainer.checkpoint.folder import (
    Checkpoint,
    Marker,
    discover,
    write_atomically,
    write_marker,
)
from raggrpo_trainer.checkpoint.store import SavePhase
from support.builders.trainer.checkpoints import is_whole, make_claim, make_meta, make_store, shards
from support.fakes.power_loss import PowerLoss

Cuts = Callable[[Path], PowerLoss]
Left = Callable[[PowerLoss], list[Path]]


@pytest.fixture
def cuts() -> Iterator[Cuts]:
    """Watch folders until the end of the test."""
    made: list[PowerLoss] = []

    def of(root: Path) -> PowerLoss:
        made.append(PowerLoss(root))
        return made[-1]

    yield of
    for cut in made:
        cut.close()


@pytest.fixture
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the folders after a power cut: with synced entries only, and with all entries."""
    outcomes = tmp_path_factory.mktemp("outcomes")
    number = itertools.count()

    def of(cut: PowerLoss) -> list[Path]:
        both = [outcomes / str(next(number)) for _ in range(2)]
        for folder, newest_entries in zip(both, (False, True), strict=True):
            cut.leave(folder, newest_entries=newest_entries)
        return both

    return of


def newest(path: Path) -> Checkpoint:
    return discover(path, validity(path))[0][0]


def test_power_loss_during_export_leaves_complete_model_or_none(
    tmp_path: Path, cuts: Cuts, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(make_claim(tmp_path))
    cut = cuts(tmp_path)
    observed: list[str] = []

    def check_folders() -> None:
        folders = [folder / EXPORT_DIR for folder in left(cut)]
        observed.extend(
            (each / "model.safetensors").read_text() for each in folders if each.exists()
        )

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text("whole")

    with monkeypatch.context() as patch:
        cut.watch(patch, check_folders)
        store.export(write)
    check_folders()

    assert set(observed) == {"whole"}


def test_power_loss_during_save_leaves_complete_checkpoint(
    tmp_path: Path, cuts: Cuts, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(make_claim(tmp_path), keep_last=1, keep_best=False)
    store.save(make_meta(10), shards(10))
    cut = cuts(tmp_path)
    observed: list[int] = []

    def check_folders() -> None:
        for folder in left(cut):
            checkpoint = newest(folder)
            assert is_whole(checkpoint)
            observed.append(checkpoint.marker.step)

    with monkeypatch.context() as patch:
        cut.watch(patch, check_folders)
        store.save(make_meta(20), shards(20))

    assert set(observed) == {10, 20}
    for folder in left(cut):
        assert newest(folder).marker.step == 20
        assert is_whole(newest(folder))


def test_checkpoint_files_are_synced_before_last_fence_check(
    tmp_path: Path, cuts: Cuts, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[dict[str, StoredFile]] = []

    def reached(phase: SavePhase, _step: int) -> None:
        if phase is SavePhase.COMPLETE:
            outcomes.append(stored_files(left(cut)[1] / "step_00000010.e1", {}))

    store = make_store(make_claim(tmp_path), reached=reached)
    cut = cuts(tmp_path)
    with monkeypatch.context() as patch:
        cut.watch(patch, lambda: None)
        saved = store.save(make_meta(10), shards(10))

    assert outcomes == [saved.marker.files]


def test_complete_marker_is_written_after_all_files_are_synced(
    tmp_path: Path, cuts: Cuts, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = cuts(tmp_path)
    folder = tmp_path / "step_00000010.e1"
    (folder / "nested").mkdir(parents=True)
    (folder / "nested" / "shard").write_bytes(b"weights")
    marker = Marker(10, 1, 1, 1, "hash", "2026-11-21T00:00:00Z", None, stored_files(folder, {}))

    with monkeypatch.context() as patch:
        cut.watch(patch, lambda: None)
        write_marker(folder, marker)

    for outcome in left(cut):
        assert file_sizes(outcome) == file_sizes(tmp_path)


def test_atomic_write_replaces_file_fully_or_not_at_all(
    tmp_path: Path, cuts: Cuts, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "accepts"
    target.write_text("before")
    cut = cuts(tmp_path)
    contents: set[str] = set()

    with monkeypatch.context() as patch:
        cut.watch(patch, lambda: contents.update((f / "accepts").read_text() for f in left(cut)))
        write_atomically(target, "after")

    assert contents == {"before", "after"}
    assert {(f / "accepts").read_text() for f in left(cut)} == {"after"}


def test_power_loss_during_claim_does_not_block_next_claim(
    tmp_path: Path, cuts: Cuts, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(make_claim(tmp_path)).save(make_meta(10), shards(10))
    cut = cuts(tmp_path)
    outcomes: list[Path] = []

    with monkeypatch.context() as patch:
        cut.watch(patch, lambda: outcomes.extend(left(cut)))
        second = make_claim(tmp_path, attempt=2)
    outcomes.extend(left(cut))

    for outcome in outcomes:
        fence = make_claim(outcome, attempt=3)
        assert fence.epoch in (2, 3)
        assert [is_whole(c) for c in make_store(fence).checkpoints] == [True]
    assert second.epoch == 2
