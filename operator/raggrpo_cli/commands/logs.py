"""`raggrpo logs`: print the driver log of an attempt."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from raggrpo_api.foreign_files import open_regular, require_below
from raggrpo_api.names import ATTEMPTS_DIR, DRIVER_LOG
from raggrpo_cli.job_file import fail
from raggrpo_cli.recorded_job import DirOption, RecordedJob, load_recorded_job, resolve_folder
from raggrpo_cli.terminal import ALL_LINES, Follow, Tail, last_lines_start, log_printer
from raggrpo_operator.local_runtime.job_folder import JobFolder

POLL_SECONDS = 0.5
CHUNK_BYTES = 1 << 20
MAX_TAIL_BYTES = 64 << 20
"""Maximum size of the last lines of a log."""

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


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
    file = files[number]
    folder = recorded.log_dir if file.is_relative_to(recorded.log_dir) else file.parent
    try:
        require_below(file, folder)
        log = open_regular(file)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}")
    with log:
        if tail != ALL_LINES:
            _seek_last_lines(log, tail)
        while follow and _is_running(recorded.folder, number):
            time.sleep(POLL_SECONDS)
            _copy(log, printer)
        _copy(log, printer)


def _seek_last_lines(log: BinaryIO, count: int) -> None:
    """Move to the start of the last `count` lines."""
    start = max(0, os.fstat(log.fileno()).st_size - MAX_TAIL_BYTES)
    log.seek(start)
    log.seek(start + last_lines_start(log.read(MAX_TAIL_BYTES), count))


def _copy(log: BinaryIO, printer: Callable[[bytes], None]) -> None:
    while chunk := log.read(CHUNK_BYTES):
        printer(chunk)


def _is_running(folder: Path, number: int) -> bool:
    """Return whether a `raggrpo run` of the job exists and the attempt has not ended."""
    place = JobFolder(folder)
    running = [each.number for each in place.load().status.attempts if each.cause is None]
    return place.is_in_use() and number in running


def _logs(recorded: RecordedJob) -> dict[int, Path]:
    """Return log files by attempt number; a live log replaces its copy, which may be incomplete."""
    copies = (recorded.log_dir / ATTEMPTS_DIR).glob(f"*/{DRIVER_LOG}")
    files = {int(path.parent.name): path for path in copies if _NUMBER.fullmatch(path.parent.name)}
    number = recorded.status.attempt
    if recorded.temp_dir is not None:
        from raggrpo_operator.local_runtime.driver import driver_log

        live = driver_log(recorded.temp_dir, number)
        if os.path.exists(live):  # unlike `live.exists()`, False for any invalid path
            files[number] = live
    return files
