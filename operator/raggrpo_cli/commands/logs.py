"""`raggrpo logs`: an attempt's driver output, which is kept after the attempt ends."""

from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.names import ATTEMPTS_DIR, DRIVER_LOG
from raggrpo_cli.job_file import fail
from raggrpo_cli.recorded_job import DirOption, RecordedJob, load_recorded_job, resolve_folder
from raggrpo_cli.terminal import log_printer


def logs(
    job_file: Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]")] = None,
    dir: DirOption = None,  # noqa: A002
    attempt: Annotated[int, typer.Option("--attempt", help="Which one; 0: the newest.")] = 0,
) -> None:
    """Print the driver's log of an attempt, running or ended."""
    recorded = load_recorded_job(resolve_folder(dir, job_file))
    found = _logs(recorded)
    if not found:
        fail(f"no attempt of this job has begun yet; see also {recorded.folder / 'logs'}")
    number = attempt or max(found)
    if number not in found:
        have = ", ".join(map(str, sorted(found)))
        fail(f"there is no log of attempt {number}; there are logs of {have}")
    log_printer()(found[number].read_bytes())


def _logs(recorded: RecordedJob) -> dict[int, Path]:
    """Return attempt → log; a driver's live log replaces its kept copy, which lags behind."""
    kept = (recorded.log_dir / ATTEMPTS_DIR).glob(f"*/{DRIVER_LOG}")
    found = {int(path.parent.name): path for path in kept}
    number = recorded.status.attempt
    if recorded.temp_dir is not None:
        from raggrpo_operator.local_runtime.driver import driver_log

        live = driver_log(recorded.temp_dir, number)
        if live.exists():
            found[number] = live
    return found
