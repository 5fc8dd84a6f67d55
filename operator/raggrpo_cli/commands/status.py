"""`raggrpo status`: show the status of a local job."""

import json
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.status.job_status import status_to_json
from raggrpo_cli.recorded_job import DirOption, Sizing, load_recorded_job, resolve_folder
from raggrpo_cli.terminal import show
from raggrpo_operator.core.text.status_text import render_status


def status(
    job_file: Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]")] = None,
    dir: DirOption = None,  # noqa: A002
    sizing: Sizing = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Show phase, progress, attempts and conditions of a local job."""
    job_status = load_recorded_job(resolve_folder(dir, job_file)).status
    if as_json:
        show(json.dumps(status_to_json(job_status), indent=1))
    else:
        show(render_status(job_status, with_sizing=sizing), nl=False)
