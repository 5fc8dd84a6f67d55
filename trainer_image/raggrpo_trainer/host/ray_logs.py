"""Keep the end of Ray's own logs of this pod in the job's log folder: a lost pod takes the others.

Driver, ranks and engines all offer to do it; whoever holds the lock does, so that one of a pod
writes. The work is done by a thread that lives as long as its process.
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
"""What tells why Ray ended a process, a node or itself."""
KEPT_BYTES: Final = 64 * 1024
LOOK_SECONDS: Final = 1.0
"""What is written in the last second of a pod is lost."""
LOCK: Final = "kept-by-job.lock"
FOLDER: Final = "ray"


class RayLogs:
    """Copies what has changed at the end of one node's logs."""

    def __init__(self, source: Path, host: str) -> None:
        self._source, self._host = source, host
        self._lock: int | None = None
        self._copied: dict[tuple[str, Path], tuple[int, int]] = {}

    def copy(self, target: Path) -> None:
        """Copy the logs that have changed to `<target>/<host>/`, if no other process does."""
        if not self._is_ours():
            return
        for name in NAMES:
            source, kept = self._source / name, target / self._host / name
            try:
                found = source.stat()
            except FileNotFoundError:
                continue
            state = (found.st_size, found.st_mtime_ns)
            if found.st_size and self._copied.get((name, target)) != state:
                _copy_end(source, kept)
                self._copied[name, target] = state

    def close(self) -> None:
        """Let another process go on, as the end of this one does."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _is_ours(self) -> bool:
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
        file.seek(max(0, file.tell() - KEPT_BYTES))
        end = file.read()
    draft = target.with_name(f"{target.name}.tmp")
    draft.write_bytes(end)
    draft.replace(target)


class _Keeper(threading.Thread):
    def __init__(self, logs: RayLogs, folder: Path) -> None:
        super().__init__(name="ray-logs", daemon=True)
        self._logs, self.folder = logs, folder

    def run(self) -> None:
        told = ""
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            try:
                self._logs.copy(self.folder)
            except OSError as error:  # a full volume must not end training
                if told != str(error):
                    log.warning("Ray's logs cannot be kept in %s: %s", self.folder, error)
                told = str(error)


_keepers: list[_Keeper] = []


def keep_ray_logs(folder: Path) -> None:
    """Keep the logs of this process's Ray node in `<folder>/ray/` from now on."""
    node = worker._global_node
    if node is None:
        raise RuntimeError("Ray is not connected")
    if _keepers:
        _keepers[0].folder = folder / FOLDER
        return
    logs = RayLogs(Path(node.get_logs_dir_path()), socket.gethostname())
    _keepers.append(_Keeper(logs, folder / FOLDER))
    _keepers[0].start()
