"""`raggrpo validate JOB.yaml`: check a job file."""

from raggrpo_cli.job_file import JobFile, Sets, load_job, resolve_valid_job
from raggrpo_cli.terminal import show


def validate(job_file: JobFile, set_: Sets = None) -> None:
    """Check a job file; report all problems with field and remedy."""
    job = load_job(job_file, set_)
    resolve_valid_job(job)
    show(f"{job_file}: job {job.metadata.name} is valid")
