"""Reads a job folder for a command that looks at a run, whether it has ended or not."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import JobStatus
from raggrpo_operator.core.resolve import Resolved, resolve
from raggrpo_operator.errors import RuntimeTrouble
from raggrpo_operator.local_runtime.job_folder import JOB, STATE, JobFolder

from .job_file import parsed, refuse


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job as its folder tells it."""

    folder: Path
    job: RagGrpoJob
    resolved: Resolved
    status: JobStatus

    @property
    def log_dir(self) -> Path:
        """Return the folder of its history."""
        return Path(self.resolved.spec.monitoring.log_dir)


def recorded_job(folder: Path) -> RecordedJob:
    """Return the job of a folder, or end the command with what to do."""
    if not (folder / JOB).exists() or not (folder / STATE).exists():
        refuse(f"{folder} is no job folder: it is made by `raggrpo run JOB.yaml --dir {folder}`")
    try:
        status = JobFolder(folder).load().status
    except RuntimeTrouble as trouble:
        refuse(str(trouble))
    job = parsed(yaml.safe_load((folder / JOB).read_text()))
    return RecordedJob(folder, job, resolve(job, status.preflight.facts), status)
