"""Copy the ends of Ray's own logs to the job's log folder, where they outlive the pod.

Driver, ranks and engines all run this thread; in each pod, only the process with the lock writes.
"""

import fcntl
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Final

from ray._private import worker

log = logging.getLogger(__name__)

NAMES: Final = ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err", "dashboard.log")
"""Logs that show why Ray terminated a process, a node or itself."""
TAIL_BYTES: Final = 64 * 1024
COPY_SECONDS: Final = 1.0
"""Copy interval; at most the last second of a pod's logs is lost."""
LOCK: Final = "kept-by-job.lock"
FOLDER: Final = "ray"


class RayLogs:
    """Copies the ends of one node's logs if the logs have changed."""

    def __init__(self, source: Path, host: str) -> None:
        self._source = source
        self._host = host
        self._lock: int | None = None
        self._copied: dict[tuple[str, Path], tuple[int, int]] = {}

    def copy(self, target: Path) -> None:
        """Copy changed logs to `<target>/<host>/`, unless another process holds the lock."""
        if not self._has_lock():
            return
        for name in NAMES:
            source = self._source / name
            try:
                status = source.stat()
            except FileNotFoundError:
                continue
            state = (status.st_size, status.st_mtime_ns)
            if status.st_size and self._copied.get((name, target)) != state:
                _copy_end(source, target / self._host / name)
                self._copied[name, target] = state

    def close(self) -> None:
        """Release the lock; if the process exits without this call, the kernel releases it."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _has_lock(self) -> bool:
        if self._lock is None:
            lock = os.open(self._source / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
        return True


def _copy_end(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        end = file.read()
    draft = target.with_name(f"{target.name}.tmp")
    draft.write_bytes(end)
    draft.replace(target)


class _CopyThread(threading.Thread):
    def __init__(self, logs: RayLogs, folder: Path) -> None:
        super().__init__(name="ray-logs", daemon=True)
        self._logs = logs
        self.folder = folder

    def run(self) -> None:
        logged = ""
        timer = threading.Event()
        while not timer.wait(COPY_SECONDS):
            try:
                self._logs.copy(self.folder)
            except OSError as error:  # a full volume must not end training
                if logged != str(error):
                    log.warning(
                        "cannot copy Ray's logs to %s: %s; training continues", self.folder, error
                    )
                logged = str(error)


_threads: list[_CopyThread] = []
"""The copy thread of this process; empty until it has started."""


def save_ray_logs(folder: Path) -> None:
    """Copy the logs of this process's Ray node to `<folder>/ray/` from now on."""
    node = worker._global_node
    if node is None:
        raise RuntimeError("this process is not connected to Ray")
    if _threads:
        _threads[0].folder = folder / FOLDER
        return
    logs = RayLogs(Path(node.get_logs_dir_path()), socket.gethostname())
    _threads.append(_CopyThread(logs, folder / FOLDER))
    _threads[0].start()
