from pathlib import Path

import pytest

from raggrpo_trainer.host.ray_head_store import ray_store_env


def test_gcs_state_of_earlier_clusters_is_removed(tmp_path: Path) -> None:
    store = tmp_path / "heads/uid/small-c2"
    other_job = tmp_path / "heads/other/small-c1"
    for folder in (store.with_name("small-c1"), store, other_job):
        (folder / "state").mkdir(parents=True)

    env = ray_store_env(store)

    assert env == {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(store)}
    assert [each.name for each in store.parent.iterdir()] == ["small-c2"]
    assert [each.name for each in store.iterdir()] == ["state"], "the probe is removed"
    assert other_job.is_dir()


@pytest.mark.row("B17")
@pytest.mark.parametrize("unsupported", ["mkdir", "fsync", "lockf", "replace"])
def test_gcs_state_is_kept_in_memory_on_unsupported_volume(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unsupported: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    for owner in ("os", "fcntl", "Path"):
        monkeypatch.setattr(
            f"raggrpo_trainer.host.ray_head_store.{owner}.{unsupported}", fail, raising=False
        )

    env = ray_store_env(tmp_path / "heads/small-c1")

    assert env == {}
    assert "cannot store the Ray head's state on the volume ([Errno 95]" in caplog.text
