"""A job that loses its volume and later its S3 server."""

import shutil
from pathlib import Path

import pytest

from local.drills.drill import Run
from support.servers.s3_server import KEY, S3Server

pytestmark = pytest.mark.long


@pytest.mark.row("A27")
def test_job_survives_volume_loss_and_backup_server_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        backup = [
            f"checkpoint.backup.url=s3://{server.bucket}/drill",
            "checkpoint.backup.everySteps=3",
        ]
        run = Run(tmp_path / "job")
        run.finish(run.start("", *backup, "training.totalSteps=6"))
        assert "drill/step_00000006.e1/COMPLETE" in server.objects()

        shutil.rmtree(tmp_path / "job" / "checkpoints")
        process = run.start("slow-step@step=7:3", *backup, "training.totalSteps=9")
        run.wait_for(lambda s: s["attempts"][0].get("fromStep") == 6, "the resume at step 6")
        server.stop()
        outcome = run.finish(process)

    status = run.status()
    assert status["phase"] == "Succeeded"
    [resumed] = [each for each in outcome.summary["attempts"] if each["number"] == 2]
    assert (resumed["fromStep"], resumed["toStep"]) == (6, 9)
    [healthy] = [c for c in status["conditions"] if c["type"] == "CheckpointHealthy"]
    assert (healthy["status"], healthy["reason"]) == ("False", "BackupFailed")
    assert f"to checkpoint.backup.url s3://{server.bucket}/drill: " in healthy["message"]
    assert outcome.left_over == []
    for written in (tmp_path / "job").rglob("*"):
        assert not written.is_file() or KEY.encode() not in written.read_bytes(), written
