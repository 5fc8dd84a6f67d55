"""`raggrpo logs`: print the driver log of an attempt."""

import time
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.names import ATTEMPTS_DIR, DRIVER_LOG
from raggrpo_cli.job_file import fail
from raggrpo_cli.recorded_job import DirOption, RecordedJob, load_recorded_job, resolve_folder
from raggrpo_cli.terminal import ALL_LINES, Follow, Tail, last_lines, log_printer
from raggrpo_operator.local_runtime.job_folder import JobFolder

POLL_SECONDS = 0.5


def logs(
    job_file: Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]")] = None,
    dir: DirOption = None,  # noqa: A002
    attempt: Annotated[
        int, typer.Option("--attempt", help="Attempt number; 0 for the newest.")
    ] = 0,
    follow: Follow = False,
    tail: Tail = ALL_LINES,
) -> None:
    """Print the driver log of an attempt."""
    recorded = load_recorded_job(resolve_folder(dir, job_file))
    files = _logs(recorded)
    if not files:
        fail(f"no attempt of this job has started: read the logs in {recorded.folder / 'logs'}")
    number = attempt or max(files)
    if number not in files:
        existing = ", ".join(map(str, sorted(files)))
        fail(f"attempt {number} has no log; attempts with logs: {existing}")
    printer = log_printer()
    with files[number].open("rb") as log:
        printer(last_lines(log.read(), tail))
        while follow and _is_running(recorded.folder, number):
            time.sleep(POLL_SECONDS)
            printer(log.read())
        printer(log.read())


def _is_running(folder: Path, number: int) -> bool:
    """Return whether a `raggrpo run` of the job exists and the attempt has not ended."""
    place = JobFolder(folder)
    running = [each.number for each in place.load().status.attempts if each.cause is None]
    return place.is_in_use() and number in running


def _logs(recorded: RecordedJob) -> dict[int, Path]:
    """Return log files by attempt number; a live log replaces its copy, which may be incomplete."""
    copies = (recorded.log_dir / ATTEMPTS_DIR).glob(f"*/{DRIVER_LOG}")
    files = {int(path.parent.name): path for path in copies}
    number = recorded.status.attempt
    if recorded.temp_dir is not None:
        from raggrpo_operator.local_runtime.driver import driver_log

        live = driver_log(recorded.temp_dir, number)
        if live.exists():
            files[number] = live
    return files
