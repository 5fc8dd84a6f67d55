"""Backups on a real S3 server: complete or interrupted, server unavailable, wrong bucket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from raggrpo_api.spec.checkpoint import CheckpointSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckState
from raggrpo_trainer.checkpoint import backup as checkpoint_backup
from raggrpo_trainer.checkpoint.backup_thread import BackupThread
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.preflight.finding import Finding
from raggrpo_trainer.preflight.storage import check_writable
from support.builders.trainer.checkpoints import is_whole, make_claim, make_meta, shards
from support.builders.trainer.preflight import make_fit_config
from support.servers.s3_server import KEY, S3Server

WAIT = 60.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server() as started:
        for name, value in started.env.items():
            monkeypatch.setenv(name, value)
        yield started


def make_store(path: Path, url: str, attempt: int = 1) -> CheckpointStore:
    spec = CheckpointSpec.model_validate({"path": str(path), "backup": {"url": url}})
    return CheckpointStore(spec, make_claim(path, attempt=attempt), "config-hash")


def url_in(server: S3Server, folder: str = "demo") -> str:
    return f"s3://{server.bucket}/{folder}"


def test_empty_volume_is_restored_from_s3_backup(server: S3Server, tmp_path: Path) -> None:
    store = make_store(tmp_path / "volume", url_in(server))
    for step in (10, 20):
        store.back_up(store.save(make_meta(step), shards(step)))

    restored = make_store(tmp_path / "new", url_in(server), attempt=2).restore()

    assert restored is not None
    assert restored.marker.step == 20
    assert is_whole(restored)
    assert {key.split("/")[1] for key in server.objects()} == {
        "step_00000010.e1",
        "step_00000020.e1",
    }


def test_s3_backup_without_marker_is_ignored(server: S3Server, tmp_path: Path) -> None:
    store = make_store(tmp_path / "volume", url_in(server))
    for step in (10, 20):
        store.back_up(store.save(make_meta(step), shards(step)))
    marker = "demo/step_00000020.e1/COMPLETE"
    assert marker in server.objects()
    server.client().delete_object(Bucket=server.bucket, Key=marker)
    restored = make_store(tmp_path / "new", url_in(server)).restore()

    assert restored is not None
    assert restored.marker.step == 10


@pytest.mark.row("A27")
def test_unavailable_s3_server_is_reported_until_backup_succeeds(
    server: S3Server, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "volume", url_in(server))
    backups = BackupThread(store)
    server.stop()

    backups.offer(store.save(make_meta(10), shards(10)))
    assert backups.wait(WAIT)
    server.start()
    backups.offer(store.save(make_meta(20), shards(20)))
    assert backups.wait(WAIT)

    failed, done = backups.outcomes()
    assert (failed.step, done.step, done.failure) == (10, 20, "")
    assert f"to checkpoint.backup.url {url_in(server)}: " in failure_without_key(failed.failure)
    assert backups.outcomes() == []


def test_restore_fails_when_s3_server_is_unreachable(server: S3Server, tmp_path: Path) -> None:
    server.stop()
    with pytest.raises(TrainerError, match=f"cannot read checkpoint.backup.url {url_in(server)}"):
        make_store(tmp_path, url_in(server)).restore()


def test_missing_s3_bucket_is_named_in_error(server: S3Server) -> None:
    checkpoint_backup.check_readable(url_in(server), "")
    with pytest.raises(TrainerError, match="bucket typo does not exist") as raised:
        checkpoint_backup.check_readable("s3://typo/demo", "")
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
    assert [b["Name"] for b in server.client().list_buckets()["Buckets"]] == [server.bucket]


def test_preflight_rejects_unwritable_backup_url(server: S3Server, tmp_path: Path) -> None:
    def preflight_finding(url: str) -> Finding:
        changes = {"checkpoint.backup": {"url": url, "everySteps": 100}}
        return check_writable(make_fit_config(tmp_path, changes), {})

    assert preflight_finding(url_in(server)).state is CheckState.PASSED
    result = preflight_finding("s3://typo/demo")
    assert result.state is CheckState.FAILED
    assert "checkpoint.backup.url s3://typo/demo: " in result.evidence


def test_outdated_backups_are_skipped_and_retention_waits_for_running_backup(
    server: S3Server, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "volume", url_in(server))
    backups = BackupThread(store)
    for step in range(10, 80, 10):
        backups.offer(store.save(make_meta(step), shards(step)))
    assert backups.wait(WAIT)

    outcomes = backups.outcomes()
    steps = [each.step for each in outcomes]
    assert not any(each.failure for each in outcomes)
    assert steps[0] == 10
    assert steps[-1] == 70
    assert len(steps) < 7


def failure_without_key(failure: str) -> str:
    assert KEY not in failure
    return failure
