"""`raggrpo validate JOB.yaml`: form and rules, without touching anything."""

import typer

from raggrpo_cli.job_file import JobFile, Sets, accepted, given_job


def validate(job_file: JobFile, set_: Sets = None) -> None:
    """Check a job file; every problem is named with its field and its remedy."""
    job = given_job(job_file, set_)
    accepted(job)
    typer.echo(f"{job_file}: job {job.metadata.name} is valid")
