"""`raggrpo export`: write a Hugging Face folder from a checkpoint of any job."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.staging import pushed_text
from raggrpo_cli.job_file import FAILED, fail
from raggrpo_cli.push_results import describe, require_target, upload
from raggrpo_cli.recorded_job import DirOption, load_recorded_job
from raggrpo_cli.terminal import show
from raggrpo_cli.trainer_process import output_of
from raggrpo_operator.errors import OperatorError, PermanentError

COMMAND = (sys.executable, "-m", "raggrpo_trainer.checkpoint_export")


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to create.")],
    path: Annotated[
        Path | None,
        typer.Argument(help="Checkpoint folder of a job, or the folder of one checkpoint."),
    ] = None,
    dir: DirOption = None,  # noqa: A002
    step: Annotated[
        str, typer.Option("--step", help="Step number, 'best' or 'newest'.")
    ] = "newest",
    model: Annotated[
        str, typer.Option("--model", help="Folder of the initial model (default: the job's).")
    ] = "",
    push: Annotated[
        str, typer.Option("--push", help="URL to upload the folder to, such as hf://org/name.")
    ] = "",
) -> None:
    """Write a Hugging Face folder from a checkpoint, also of a running or failed job."""
    if push:
        require_target(push)
    if output == Path():
        fail("--output is empty or the working directory; specify the folder to create")
    if (path is None) == (dir is None):
        fail("specify either a checkpoint folder or a job folder with --dir")
    recorded = load_recorded_job(dir) if dir is not None else None
    if recorded is not None:
        spec = recorded.resolved.spec
        path = Path(spec.checkpoint.path)
        model = model or spec.model.path
    summary = _export(path or Path(), output, step, model)
    score = "" if summary["score"] is None else f", {summary['scored_by']} {summary['score']:g}"
    show(f"{output.resolve()}: model after step {summary['step']}{score}")
    if push:
        if recorded is not None:
            _describe(output, recorded.job, int(summary["step"]))
        _push(output, push)


def _describe(folder: Path, job: RagGrpoJob, step: int) -> None:
    """Write model card, report and summary to the folder, or exit with an error."""
    problem = f"{folder} has the model, but was not pushed"
    try:
        describe(folder, job, step)
    except PermanentError as error:
        fail(f"{problem}: {error}")
    except OperatorError as error:
        fail(f"{problem}: {error}; free space, delete {folder} and export again", FAILED)


def _push(folder: Path, url: str) -> None:
    """Upload the folder, or exit with an error."""
    outcome = upload(folder, url)
    if outcome.pushed is None:
        fail(f"{folder} is complete, but was not pushed ({outcome.reason}): {outcome.message}")
    show(f"pushed to {pushed_text(outcome.pushed)}")


def _export(path: Path, output: Path, step: str, model: str) -> dict[str, float | str]:
    """Export in a trainer process; return its summary, or exit with its exit code."""
    command = [*COMMAND, str(path), str(output), "--step", step, "--model", model]
    summary: dict[str, float | str] = json.loads(output_of(command))
    return summary
