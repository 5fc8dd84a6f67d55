"""`raggrpo diff A[@N] [B[@M]]`: show the differences between two attempts' configurations."""

from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.foreign_files import read_json, require_below
from raggrpo_api.limits import MAX_CONFIG_BYTES
from raggrpo_api.names import ATTEMPTS_DIR, CONFIG_FILE
from raggrpo_cli.attempt_pair import HELP, diff_text, select_attempts
from raggrpo_cli.job_file import fail
from raggrpo_cli.recorded_job import RecordedJob, load_recorded_job
from raggrpo_cli.terminal import show
from raggrpo_operator.core.text.config_diff import AttemptConfig, attempt_config, attempt_name


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=HELP.format("folder", "FOLDER"))],
    second: Annotated[
        str, typer.Argument(metavar="[B]", help="Default: the attempt before A.")
    ] = "",
) -> None:
    """Show the differences between the configurations of two attempts."""
    selected = [attempt_name(text) for text in (first, second) if text]
    jobs = {job: load_recorded_job(Path(job)) for job, _ in selected}
    newest = {job: recorded.status.attempt for job, recorded in jobs.items()}
    earlier, later = select_attempts(selected, newest)
    a, b = (_config(jobs[job], number) for job, number in (earlier, later))
    show(diff_text(earlier, a, later, b))


def _config(recorded: RecordedJob, number: int) -> AttemptConfig:
    path = recorded.log_dir / ATTEMPTS_DIR / str(number) / CONFIG_FILE
    try:
        require_below(path, recorded.log_dir)
        return attempt_config(read_json(path, MAX_CONFIG_BYTES), recorded.resolved)
    except (OSError, ValueError) as error:
        fail(f"the configuration of attempt {number} cannot be read: {path}: {error}")
