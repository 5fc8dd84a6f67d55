from pathlib import Path

import pytest

from raggrpo_trainer.host.ray_head_store import ray_store_env


def test_a_head_keeps_its_state_and_drops_that_of_earlier_clusters(tmp_path: Path) -> None:
    mine, foreign = (tmp_path / "heads" / each for each in ("uid/small-c2", "other/small-c1"))
    for folder in (mine.with_name("small-c1"), mine, foreign):
        (folder / "state").mkdir(parents=True)

    env = ray_store_env(mine)

    assert env == {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(mine)}
    assert [each.name for each in mine.parent.iterdir()] == ["small-c2"]
    assert [each.name for each in mine.iterdir()] == ["state"], "what was tried is gone again"
    assert foreign.is_dir()


@pytest.mark.row("B17")
@pytest.mark.parametrize("refused", ["mkdir", "fsync", "lockf", "replace"])
def test_a_volume_that_cannot_hold_it_costs_no_more_than_the_state(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: str,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    for owner in ("os", "fcntl", "Path"):
        monkeypatch.setattr(
            f"raggrpo_trainer.host.ray_head_store.{owner}.{refused}", refuse, raising=False
        )

    env = ray_store_env(tmp_path / "heads/small-c1")

    assert env == {}
    assert "its loss costs a new cluster: [Errno 95]" in caplog.text
