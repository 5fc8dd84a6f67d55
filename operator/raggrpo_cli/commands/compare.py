"""`raggrpo compare A B`: show the results of two runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.trainer.history import read_records
from raggrpo_cli.comparison_output import show_comparison
from raggrpo_cli.recorded_job import RecordedJob, load_recorded_job
from raggrpo_operator.core.text.comparison import Run


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Job folder.")],
    second: Annotated[
        Path | None,
        typer.Argument(metavar="[B]", help="Default: compare the last two segments of A."),
    ] = None,
) -> None:
    """Compare two runs: rewards, start-up, pace, retrieval, memory and specified values."""
    folders = [first] if second is None else [first, second]
    show_comparison([_run(load_recorded_job(folder)) for folder in folders])


def _run(recorded: RecordedJob) -> Run:
    history = read_records(recorded.log_dir)
    return Run(
        name=str(recorded.folder),
        job=recorded.job.metadata.name,
        resolved=recorded.resolved,
        status=recorded.status,
        history=history.steps,
        events=history.events,
        problem=history.problem,
    )
