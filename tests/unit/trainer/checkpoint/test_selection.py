from pathlib import Path

import pytest

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint.selection import select_checkpoint
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import make_claim, make_meta, make_store, shards


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder whose claim is alive, with checkpoints of steps 2, 4 and 6; 4 is best."""
    store = make_store(make_claim(tmp_path / "checkpoints"))
    for step, score in ((2, 0.1), (4, 0.9), (6, 0.5)):
        store.save(make_meta(step), shards(step), score=score)
    return tmp_path / "checkpoints"


@pytest.mark.parametrize(
    ("step", "selected"), [("newest", 6), ("Newest", 6), ("best", 4), ("Best", 4), ("2", 2)]
)
def test_selected_checkpoint_has_requested_step(saved: Path, step: str, selected: int) -> None:
    assert select_checkpoint(saved, step).name.step == selected


def test_folder_of_checkpoint_selects_that_checkpoint(saved: Path) -> None:
    assert select_checkpoint(saved / "step_00000002.e1").name.step == 2


def test_checkpoint_copied_alone_is_selected(saved: Path, tmp_path: Path) -> None:
    copy = (saved / "step_00000004.e1").rename(tmp_path / "step_00000004.e1")
    assert select_checkpoint(copy).folder == copy


def test_incomplete_checkpoint_is_not_selected(saved: Path) -> None:
    (saved / "step_00000006.e1" / "COMPLETE").unlink()
    assert select_checkpoint(saved).name.step == 4


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("3", "step 3 does not exist; complete checkpoints: 6, 4, 2"),
        ("last", "'last' is not newest, best or a step number"),
        ("-1", "'-1' is not newest, best or a step number"),
    ],
)
def test_error_lists_complete_checkpoints(saved: Path, step: str, message: str) -> None:
    with pytest.raises(TrainerError, match=message) as error:
        select_checkpoint(saved, step)
    assert error.value.exit_code is ExitCode.CONFIG_ERROR


def test_error_names_damage_when_nothing_is_usable(saved: Path) -> None:
    for shard in saved.glob("*/__0_0.distcp"):
        shard.unlink()
    with pytest.raises(TrainerError, match=r"no complete checkpoint; not usable: .*is missing"):
        select_checkpoint(saved)


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_folder_without_checkpoints_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrainerError, match=f"{name} (is not a folder|has no complete)"):
        select_checkpoint(tmp_path / name)


def test_best_without_scores_is_reported(tmp_path: Path) -> None:
    make_store(make_claim(tmp_path)).save(make_meta(1), shards(1))
    with pytest.raises(TrainerError, match="none has a score; complete checkpoints: 1"):
        select_checkpoint(tmp_path, "best")
