"""`raggrpo validate JOB.yaml`: form and rules, without touching anything."""

from pathlib import Path
from typing import Annotated

import typer

from raggrpo_cli.job_file import accepted, parsed, read_yaml


def validate(
    job_file: Annotated[Path, typer.Argument(help="The job, a YAML file.")],
) -> None:
    """Check a job file; every problem is named with its field and its remedy."""
    job = parsed(read_yaml(job_file))
    accepted(job)
    typer.echo(f"{job_file}: job {job.metadata.name} is valid")
