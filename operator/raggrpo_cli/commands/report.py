"""`raggrpo report`: write the report of a job, also while it is running."""

from pathlib import Path
from typing import Annotated

import typer

from raggrpo_cli.job_file import FAILED, fail
from raggrpo_cli.recorded_job import load_recorded_job
from raggrpo_cli.terminal import show
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.reporting.report import write_report


def report(
    dir: Annotated[Path, typer.Option("--dir", help="Job folder.")] = Path(),  # noqa: A002
) -> None:
    """Write report.html (rewards, stage times, attempts) and print its path."""
    recorded = load_recorded_job(dir)
    try:
        path = write_report(
            recorded.folder,
            recorded.log_dir,
            recorded.status,
            name=recorded.job.metadata.name,
            resolved=recorded.resolved,
        )
    except OperatorError as error:
        fail(str(error), FAILED)
    show(path.resolve())
