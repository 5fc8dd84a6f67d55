"""`raggrpo logs`: the driver's output of an attempt, kept after the attempt is gone."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from raggrpo_api.names import ATTEMPTS_DIR
from raggrpo_cli.job_file import parsed, refuse
from raggrpo_operator.core.resolve import resolve
from raggrpo_operator.local_runtime.job_folder import JOB


def logs(
    dir: Annotated[Path, typer.Option("--dir", help="Job folder.")],  # noqa: A002
    attempt: Annotated[int, typer.Option("--attempt", help="Which one; 0: the newest.")] = 0,
) -> None:
    """Print the driver's log of an attempt that has ended."""
    if not (dir / JOB).exists():
        refuse(f"{dir} is no job folder: it is made by `raggrpo run JOB.yaml --dir {dir}`")
    job = parsed(yaml.safe_load((dir / JOB).read_text()))
    attempts = Path(resolve(job).spec.monitoring.log_dir) / ATTEMPTS_DIR
    found = sorted(int(p.parent.name) for p in attempts.glob("*/driver.log"))
    if not found:
        refuse(f"no attempt of the job in {dir} has ended yet; see also {dir / 'logs'}")
    number = attempt or found[-1]
    if number not in found:
        refuse(f"there is no log of attempt {number}; there are {', '.join(map(str, found))}")
    typer.echo((attempts / str(number) / "driver.log").read_text(errors="replace"), nl=False)
