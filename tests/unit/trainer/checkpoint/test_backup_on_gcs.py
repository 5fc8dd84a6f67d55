"""Backups on an emulator of Google Cloud Storage."""

from pathlib import Path

import pytest

from raggrpo_api.spec.checkpoint import CheckpointSpec
from raggrpo_trainer.checkpoint import backup
from raggrpo_trainer.checkpoint.store import CheckpointStore
from support.builders.trainer.checkpoints import is_whole, make_claim, make_meta, shards
from support.servers.gcs_server import GcsServer


def make_store(path: Path, url: str) -> CheckpointStore:
    spec = CheckpointSpec.model_validate({"path": str(path), "backup": {"url": url}})
    return CheckpointStore(spec, make_claim(path), "config-hash")


def test_empty_volume_is_restored_from_gcs_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "READ_AHEAD_BYTES", 1000)
    monkeypatch.setattr(backup, "COPY_BYTES", 1000)
    with GcsServer() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        url = f"gs://{server.bucket}/demo"
        store = make_store(tmp_path / "volume", url)
        for step in (10, 20):
            store.back_up(store.save(make_meta(step), shards(step)))
        restored = make_store(tmp_path / "new", url).restore()
    assert restored is not None
    assert restored.marker.step == 20
    assert is_whole(restored)
