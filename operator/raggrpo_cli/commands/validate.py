"""`raggrpo validate JOB.yaml`: check form and rules. Changes nothing."""

import typer

from raggrpo_cli.job_file import JobFile, Sets, accepted, given_job


def validate(job_file: JobFile, set_: Sets = None) -> None:
    """Check a job file; report every problem with its field and remedy."""
    job = given_job(job_file, set_)
    accepted(job)
    typer.echo(f"{job_file}: job {job.metadata.name} is valid")
