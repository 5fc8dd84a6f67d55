"""A lock per source on a volume that several hosts may mount, also without support of flock.

A lock is a file `.lock.N` that its holder creates exclusively and touches periodically. A file that
nothing touches was left by a killed process: the next one creates `.lock.N+1`. A process holds the
lock if, after creating its file, all others are known to be abandoned; of two processes, the later
one sees the file of the other.
"""

import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raggrpo_api.foreign_files import open_regular, read_json
from raggrpo_api.trainer.staging import StagingReason

from .failures import FOLDER_REMEDY, StagingFailed, Stopped, translate_disk_errors

HEARTBEAT_SECONDS = 5.0
ABANDONED_SECONDS = 30.0
"""Time without heartbeat after which the process of a lock is considered dead."""
POLL_SECONDS = 0.5
REPORT_SECONDS = 10.0
_PREFIX = ".lock."


class SourceLock:
    """A lock that this process holds."""

    def __init__(self, file: Path, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._is_released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise StagingFailed if another process took over the lock."""
        files = _lock_files(self._file.parent)
        if not files or files[max(files)] != self._file:
            raise StagingFailed(
                StagingReason.LOCK_LOST,
                f"another process took over {self._file.parent}, because this one was suspended "
                f"for more than {ABANDONED_SECONDS:.0f} s; start again",
            )

    def release(self) -> None:
        """Remove the lock."""
        self._is_released.set()
        self._thread.join()
        self._file.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._is_released.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self._file)
            except FileNotFoundError:
                self._stop.set()
                return
            except OSError:  # the volume is unavailable; the next beat may succeed
                continue


@contextmanager
def source_lock(
    folder: Path,
    report: Callable[[str], None],
    stop: threading.Event,
    remedy: str = FOLDER_REMEDY,
) -> Iterator[SourceLock]:
    """Hold the lock of a folder; while another process holds it, wait and report its holder.

    Sets `stop` if another process takes over the lock, and raises StagingFailed LOCK_LOST if the
    block was stopped by that or failed afterwards, as the other process moves its files. `remedy`
    is that of a folder that cannot be written to.
    """
    with translate_disk_errors(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)
        lock = SourceLock(_acquire(folder, report), stop)
    try:
        yield lock
    except (Stopped, StagingFailed):
        lock.check()
        raise
    finally:
        lock.release()


def _acquire(folder: Path, report: Callable[[str], None]) -> Path:
    observed: dict[Path, tuple[int, float]] = {}
    reported = -REPORT_SECONDS
    while True:
        abandoned, active = _observe(folder, observed)
        if not active and (claimed := _claim(folder, abandoned, observed)) is not None:
            return claimed
        if active and time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            report(f"Waiting for {_holder(active[-1])}, which stages the same source")
        time.sleep(POLL_SECONDS * random.uniform(0.5, 1.5))


def _observe(
    folder: Path, observed: dict[Path, tuple[int, float]]
) -> tuple[dict[int, Path], list[Path]]:
    """Return the abandoned lock files by number, and the active ones.

    `observed` has the time of each file's last touch, and when it was first observed. Only clocks
    of this host are compared.
    """
    abandoned, active = {}, []
    for number, file in sorted(_lock_files(folder).items()):
        touched = _touched(file)
        if touched is None:
            continue
        if observed.get(file, (0, 0.0))[0] != touched:
            observed[file] = (touched, time.monotonic())
        is_silent = time.monotonic() - observed[file][1] >= ABANDONED_SECONDS
        if is_silent or _has_exited(file):
            abandoned[number] = file
        else:
            active.append(file)
    return abandoned, active


def _claim(
    folder: Path, abandoned: dict[int, Path], observed: dict[Path, tuple[int, float]]
) -> Path | None:
    file = folder / f"{_PREFIX}{max(abandoned, default=0) + 1}"
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o664)
    except FileExistsError:
        return None
    with os.fdopen(descriptor, "w") as opened:
        json.dump({"host": socket.gethostname(), "process": _process(os.getpid())}, opened)
    others = set(_lock_files(folder).values()) - {file}
    if any(_touched(each) not in (None, observed.get(each, (0,))[0]) for each in others):
        file.unlink(missing_ok=True)
        return None
    for each in others:
        each.unlink(missing_ok=True)
    return file


def _lock_files(folder: Path) -> dict[int, Path]:
    files = folder.glob(f"{_PREFIX}*")
    numbered = ((file.name.removeprefix(_PREFIX), file) for file in files)
    return {int(number): file for number, file in numbered if number.isdecimal()}


def _touched(file: Path) -> int | None:
    """Return the time of the last touch, or None without file; opening it bypasses NFS's cache."""
    try:
        with open_regular(file) as opened:
            return os.fstat(opened.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _content(file: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        value = read_json(file, 4096)
        if isinstance(value, dict):
            return {str(key): str(each) for key, each in value.items()}
    return {}  # it is just being written, or was removed


def _holder(file: Path) -> str:
    return _content(file).get("host") or "another process"


def _has_exited(file: Path) -> bool:
    """Return whether the holder is known to have exited: it ran on this host, and does not now."""
    process = _content(file).get("process", "")
    here, _, pid = _process(os.getpid()).rpartition("/")[0].rpartition("/")
    there, _, pid = process.rpartition("/")[0].rpartition("/")
    if not process or there != here or not pid.isdecimal():
        return False
    return process != _process(int(pid))


def _process(pid: int) -> str:
    """Return boot, PID namespace, PID and start time of a process of this host, or ""."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it exited, or there is no /proc
        return ""
    return "" if state[0] == "Z" else f"{boot}/{namespace}/{pid}/{state[19]}"
