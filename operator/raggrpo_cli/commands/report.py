"""`raggrpo report`: render a job's report again, even while the job runs."""

from pathlib import Path
from typing import Annotated

import typer

from raggrpo_cli.recorded_job import load_recorded_job
from raggrpo_cli.terminal import show
from raggrpo_operator.reporting.report import write_report


def report(
    dir: Annotated[Path, typer.Option("--dir", help="Job folder.")] = Path(),  # noqa: A002
) -> None:
    """Write report.html (rewards, stage times, attempts) and print its path."""
    found = load_recorded_job(dir)
    path = write_report(
        found.folder,
        found.log_dir,
        found.status,
        name=found.job.metadata.name,
        resolved=found.resolved,
    )
    show(path.resolve())
