"""`raggrpo diff A[@N] [B[@M]]`: how the configurations of two attempts differ."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from raggrpo_api.names import ATTEMPTS_DIR, CONFIG_FILE
from raggrpo_cli.job_file import refuse
from raggrpo_cli.recorded_job import recorded_job
from raggrpo_operator.core.text.config_diff import AttemptName, attempt_name, differences, pair

HELP = "Job {}, or {}@3 for its attempt 3; default: the newest."


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=HELP.format("folder", "FOLDER"))],
    second: Annotated[str, typer.Argument(metavar="[B]", help="Default: the one before A.")] = "",
) -> None:
    """Show where the configurations of two attempts differ."""
    named = [attempt_name(text) for text in (first, second) if text]
    jobs = {job: recorded_job(Path(job)) for job, _ in named}
    newest = {job: recorded.status.attempt for job, recorded in jobs.items()}
    earlier, later = chosen(named, newest)
    a, b = (_config(jobs[job].log_dir, number) for job, number in (earlier, later))
    typer.echo(report(str(earlier), a, str(later), b))


def chosen(
    named: Sequence[AttemptName], newest: Mapping[str, int]
) -> tuple[AttemptName, AttemptName]:
    """Return the two attempts that one or two names select, or exit listing those that exist."""
    try:
        return pair(named[0], named[1] if len(named) > 1 else None, newest)
    except ValueError as wrong:
        refuse(str(wrong))


def report(of_a: str, a: dict[str, Any], of_b: str, b: dict[str, Any]) -> str:
    """Return the command's output for two configurations."""
    found = list(differences(a, b))
    return "\n".join([f"{of_a} → {of_b}", *(found or ["nothing differs"])])


def _config(log_dir: Path, number: int) -> dict[str, Any]:
    path = log_dir / ATTEMPTS_DIR / str(number) / CONFIG_FILE
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse(f"the configuration of attempt {number} cannot be read: {path}: {error}")
    return config
