"""The process that pushes the results of a job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.job_variables import job_variables
from raggrpo_api.status.conditions import Phase
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.trainer.staging import PushOutcome, StagingReason
from raggrpo_cli import push_results
from support.builders.operator.jobs import make_job
from support.servers.hub_server import TOKEN, HubServer


def make_complete_job(folder: Path, best_step: int | None = None) -> RagGrpoJob:
    """Return a job of 40 steps whose trainer has exported a model."""
    export = folder / "checkpoints" / "export"
    export.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    (export / "model.safetensors").write_bytes(b"weights")
    changes = {
        "checkpoint.path": str(folder / "checkpoints"),
        "monitoring.logDir": str(folder / "logs"),
        "output.push": "hf://org/result",
        "volumes": [],
    }
    progress = ProgressStatus(step=40, total_steps=40)
    status = JobStatus(phase=Phase.SUCCEEDED, progress=progress, best_step=best_step)
    return make_job(changes).model_copy(update={"status": status})


def run(job: RagGrpoJob, folder: Path, hub: HubServer, token: str = TOKEN) -> PushOutcome:
    result = folder / "outcome.json"
    done = subprocess.run(
        [sys.executable, "-m", "raggrpo_cli.push_results", "--result", str(result)],
        env={
            **os.environ,
            **job_variables(job),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": token,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    outcome = PushOutcome.model_validate_json(result.read_text())
    assert done.returncode == (0 if outcome.pushed else 1)
    assert len(result.read_bytes()) < 4096  # the limit of a termination message
    return outcome


@pytest.mark.parametrize("best_step", [None, 40])
def test_push_uploads_model_with_card_report_and_summary(
    tmp_path: Path, best_step: int | None
) -> None:
    with HubServer() as hub:
        outcome = run(make_complete_job(tmp_path, best_step), tmp_path, hub)

        repository = hub.repositories["org/result"]
        assert outcome.pushed is not None
        assert outcome.pushed.revision == repository.branches["main"]
        files = repository.commits[outcome.pushed.revision]
        assert set(files) == {
            "config.json", "model.safetensors", "README.md", "report.html", "summary.json"
        }  # fmt: skip
        assert json.loads(files["summary.json"])["step"] == 40
        assert "- this folder: the model after step 40" in files["README.md"].decode()


def test_killed_export_is_reported_as_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_results, "EXPORT", ("sh", "-c", "kill -9 $$"))
    outcome = push_results.push_results(make_complete_job(tmp_path, best_step=20))
    assert outcome.reason is StagingReason.EXPORT_FAILED
    assert outcome.message == (
        "the best checkpoint cannot be exported: it was killed, usually because memory ran out; "
        "free or request more memory"
    )


def test_repeated_push_uploads_same_files(tmp_path: Path) -> None:
    job = make_complete_job(tmp_path)
    with HubServer() as hub:
        denied = run(job, tmp_path, hub, token="")
        assert denied.reason is StagingReason.TOKEN_MISSING
        assert denied.pushed is None
        first, second = (run(job, tmp_path, hub).pushed for _ in range(2))
        assert first is not None
        assert second is not None
        commits = hub.repositories["org/result"].commits
        assert commits[first.revision] == commits[second.revision]


def test_missing_best_checkpoint_is_reported(tmp_path: Path) -> None:
    with HubServer() as hub:
        outcome = run(make_complete_job(tmp_path, best_step=30), tmp_path, hub)
        assert outcome.reason is StagingReason.EXPORT_FAILED
        assert "the best checkpoint cannot be exported: " in outcome.message
        assert "has no complete checkpoint" in outcome.message
        assert "org/result" not in hub.repositories


def test_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    job = make_complete_job(tmp_path)
    (tmp_path / "checkpoints" / "export" / "summary.json").mkdir()
    with HubServer() as hub:
        outcome = run(job, tmp_path, hub)
    assert outcome.reason is StagingReason.FOLDER_NOT_WRITABLE
    assert "summary.json cannot be written" in outcome.message


def test_linked_export_is_not_pushed(tmp_path: Path) -> None:
    job = make_complete_job(tmp_path)
    export = tmp_path / "checkpoints" / "export"
    export.rename(tmp_path / "outside")
    export.symlink_to(tmp_path / "outside")
    with HubServer() as hub:
        outcome = run(job, tmp_path, hub)
        assert "org/result" not in hub.repositories
    assert outcome.reason is StagingReason.EXPORT_FAILED
    assert "export is a link: delete it" in outcome.message
    assert not (tmp_path / "outside" / "README.md").exists()


def test_unreadable_adapter_of_export_is_reported(tmp_path: Path) -> None:
    job = make_complete_job(tmp_path)
    model = job.spec.model.model_copy(update={"source": "hf://org/base@main"})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"model": model})})
    adapter = tmp_path / "checkpoints" / "export" / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_bytes(b"\xff")
    with HubServer() as hub:
        outcome = run(job, tmp_path, hub)
    assert outcome.reason is StagingReason.EXPORT_FAILED
    assert "adapter_config.json cannot be read: it is not UTF-8" in outcome.message
