"""`raggrpo status`: where a local job stands, from its folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.status import AttemptRecord, JobStatus
from raggrpo_cli.recorded_job import DirOption, recorded_job, the_folder


def status(
    job_file: Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]")] = None,
    dir: DirOption = None,  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole status.")] = False,
) -> None:
    """Show phase, progress, attempts and conditions of a local job."""
    found = recorded_job(the_folder(dir, job_file)).status
    if as_json:
        typer.echo(json.dumps(found.model_dump(mode="json", by_alias=True), indent=1))
    else:
        typer.echo("\n".join(_lines(found)))


def _lines(found: JobStatus) -> Iterator[str]:
    progress = found.progress
    yield f"phase     {found.phase}"
    yield (
        f"progress  step {progress.step}/{progress.total_steps} "
        f"({progress.progress_percentage} %), {progress.seconds_per_step:g} s/step, "
        f"stage {progress.stage or '-'}"
    )
    if found.checkpoint is not None:
        yield f"newest    {found.checkpoint.path}"
    for attempt in reversed(found.attempts):
        yield _attempt(attempt)
        yield from (f"            {happened}" for happened in attempt.in_place)
    for condition in found.conditions:
        text = f"{condition.reason}{': ' if condition.message else ''}{condition.message}"
        yield f"condition {condition.type}={condition.status} {text}"


def _attempt(attempt: AttemptRecord) -> str:
    begun = attempt.from_step if attempt.from_step is not None else "?"
    why = "".join(f"\n            {line}" for line in attempt.message.splitlines())
    return (
        f"attempt   {attempt.number} ({attempt.tier}): {attempt.cause or 'running'}, steps "
        f"{begun} to {attempt.to_step}, lost {attempt.lost_steps}{why}"
    )
