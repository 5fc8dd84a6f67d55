"""Reads the job folder for commands that inspect a local run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.foreign_files import require_own_file
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.start_from import CheckpointSource
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.spec.resolve import Resolved, resolve
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.local_runtime.job_folder import JOB, STATE, JobFolder, State

from .job_file import fail, load_job, parse_or_exit, read_job_file

DirOption = Annotated[
    Path | None, typer.Option("--dir", help="Job folder (default: raggrpo-jobs/NAME).")
]

Sizing = Annotated[bool, typer.Option("--sizing", help="Also show the sizing of the pods.")]


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job as recorded in its job folder."""

    folder: Path
    job: RagGrpoJob
    resolved: Resolved
    status: JobStatus
    temp_dir: Path | None = None
    """Temporary folder for Ray's files, or None if the run has removed it."""

    @property
    def log_dir(self) -> Path:
        """The log folder, which contains the history."""
        return Path(self.resolved.spec.monitoring.log_dir)


def load_state(folder: Path) -> State:
    """Return the state saved in a job folder, or a new state; exit with an error if damaged."""
    try:
        return JobFolder(folder).load()
    except OperatorError as error:
        fail(str(error))


def load_recorded_job(folder: Path) -> RecordedJob:
    """Return the job recorded in a folder, or exit with an error."""
    if not all(os.path.exists(folder / name) for name in (JOB, STATE)):  # False for invalid paths
        fail(f"{folder} is not a job folder: create it with `raggrpo run JOB.yaml --dir {folder}`")
    try:
        require_own_file(folder / STATE)
        require_own_file(folder / JOB)
    except OSError as error:
        fail(f"{folder}: its {STATE} or {JOB} cannot be read: {error.strerror}")
    state = load_state(folder)
    status = state.status
    job = parse_or_exit(read_job_file(folder / JOB)).model_copy(update={"status": status})
    temp_dir = Path(state.temp_dir) if state.temp_dir else None
    return RecordedJob(folder, job, resolve(job, status.preflight.facts), status, temp_dir)


def resolve_folder(folder: Path | None, job_file: Path | None) -> Path:
    """Return `folder`, or the default folder of the job in `job_file`, or exit with an error."""
    if folder is not None:
        return folder
    if job_file is None:
        fail("no job: specify JOB.yaml, or its folder with --dir")
    return default_folder(load_job(job_file).metadata.name)


def job_to_start_from(job: RagGrpoJob, folder: Path) -> RecordedJob | None:
    """Return the job named by training.startFrom, or None if the job names none or has started.

    Its folder is next to `folder`, the folder of `job`. Exits with an error if it does not exist.
    """
    start = job.spec.training.start_from
    if start is None or start.checkpoint.job_ref is None:
        return None
    if load_state(folder).status.checkpoint is not None:
        return None
    other = folder.absolute().parent / start.checkpoint.job_ref
    if not os.path.exists(other / STATE):
        fail(
            f"spec.training.startFrom.checkpoint.jobRef: {other} is not a job folder: run that job "
            f"with --dir {other}, or specify checkpoint: {{path: FOLDER}}"
        )
    return load_recorded_job(other)


def with_start_path(job: RagGrpoJob, folder: Path) -> RagGrpoJob:
    """Return the job with the path of the checkpoints of the job that it starts from."""
    other = job_to_start_from(job, folder)
    start = job.spec.training.start_from
    if other is None or start is None:
        return job
    source = CheckpointSource(path=other.job.spec.checkpoint.path)
    training = job.spec.training.model_copy(
        update={"start_from": start.model_copy(update={"checkpoint": source})}
    )
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})


def default_folder(name: str) -> Path:
    """Return the default job folder of a job."""
    return Path("raggrpo-jobs") / name
