"""`raggrpo status`: where a local job stands, from its folder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_cli.job_file import refuse
from raggrpo_operator.errors import RuntimeTrouble
from raggrpo_operator.local_runtime.job_folder import STATE, JobFolder


def status(
    dir: Annotated[Path, typer.Option("--dir", help="Job folder.")],  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole status.")] = False,
) -> None:
    """Show phase, progress, attempts and conditions of a local job."""
    if not (dir / STATE).exists():
        refuse(f"{dir} is no job folder: it is made by `raggrpo run JOB.yaml --dir {dir}`")
    try:
        found = JobFolder(dir).load().status
    except RuntimeTrouble as trouble:
        refuse(str(trouble))
    if as_json:
        typer.echo(json.dumps(found.model_dump(mode="json", by_alias=True), indent=1))
        return
    progress = found.progress
    typer.echo(f"phase     {found.phase}")
    typer.echo(
        f"progress  step {progress.step}/{progress.total_steps} "
        f"({progress.progress_percentage} %), {progress.seconds_per_step:g} s/step, "
        f"stage {progress.stage or '-'}"
    )
    if found.checkpoint is not None:
        typer.echo(f"newest    {found.checkpoint.path}")
    for attempt in reversed(found.attempts):
        ended = attempt.cause or "running"
        typer.echo(
            f"attempt   {attempt.number} ({attempt.tier}): {ended}, steps {attempt.from_step} to "
            f"{attempt.to_step}, lost {attempt.lost_steps}: {attempt.message}"
        )
        for happened in attempt.in_place:
            typer.echo(f"            {happened}")
    for condition in found.conditions:
        text = f"{condition.reason}{': ' if condition.message else ''}{condition.message}"
        typer.echo(f"condition {condition.type}={condition.status} {text}")
