"""Builders of job folders with a training history."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.history import history_file
from raggrpo_operator.local_runtime.job_folder import JobFolder, State
from raggrpo_trainer.progress.metric_sinks import JsonLines
from support.builders.operator.jobs import make_job
from support.builders.trainer.reports import make_step


def write_steps(
    log_dir: Path,
    epoch: int,
    steps: Sequence[int],
    changes: Mapping[str, Any] | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the history of one attempt with the trainer's own sink."""
    lines = JsonLines(history_file(log_dir, epoch), {"epoch": epoch, "attempt": epoch})
    for event in events:
        lines.write_event("2026-01-01T00:00:00+00:00", event)
    for step in steps:
        lines.write_step("2026-01-01T00:00:00+00:00", make_step(step, **(changes or {})), {})


def make_job_folder(
    folder: Path, status: JobStatus, changes: Mapping[str, Any] | None = None
) -> Path:
    """Return a job folder whose logs are in `<folder>/checkpoints/logs`."""
    job = make_job({"checkpoint.path": str(folder / "checkpoints"), **(changes or {})})
    job_folder = JobFolder(folder)
    job_folder.acquire()
    job_folder.save_job(job)
    job_folder.save(State(uid="5f1d", status=status))
    job_folder.release()
    return folder


def log_dir_of(folder: Path) -> Path:
    return folder / "checkpoints" / "logs"
