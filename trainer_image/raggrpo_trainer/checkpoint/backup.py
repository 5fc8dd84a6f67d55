"""Copies of checkpoints at a URL that fsspec understands: file, s3, gs.

The same rule holds there: COMPLETE is copied last, and without it there is no checkpoint.
Credentials come from the environment and are never handled here. Must not delete anything. Clients
of remote file systems raise more than OSError; every error is reported with its URL.
"""

import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .folder import COMPLETE, Checkpoint, CheckpointName, Marker, parse_marker


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete checkpoint at the backup URL."""

    file_system: Any
    folder: str
    marker: Marker

    def fetch(self, target: Path) -> None:
        """Copy everything but the marker into a local folder."""
        for file in self.marker.files:
            local = target / file
            local.parent.mkdir(parents=True, exist_ok=True)
            self.file_system.get_file(posixpath.join(self.folder, file), str(local))


def copy_out(checkpoint: Checkpoint, url: str, check: Callable[[], None]) -> None:
    """Copy a checkpoint to a folder under the URL, calling `check` before marking it complete.

    Raises TrainerError CHECKPOINT_WRITE_FAILED naming the URL, and whatever `check` raises.
    """
    with _naming(f"cannot copy {checkpoint.folder} to checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        folder = posixpath.join(root, checkpoint.folder.name)
        for file in checkpoint.marker.files:
            file_system.put_file(str(checkpoint.folder / file), posixpath.join(folder, file))
        check()
        file_system.put_file(str(checkpoint.folder / COMPLETE), posixpath.join(folder, COMPLETE))


def newest(url: str) -> Backup | None:
    """Return the newest backup whose files are all present at full size.

    Raises TrainerError CHECKPOINT_WRITE_FAILED if the backups cannot be read: starting over could
    then throw away training progress.
    """
    with _naming(f"cannot read checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        if not file_system.isdir(root):
            return None
        listed = (posixpath.basename(p.rstrip("/")) for p in file_system.ls(root, detail=False))
        for name in CheckpointName.among(listed):
            backup = _whole(file_system, posixpath.join(root, str(name)))
            if backup is not None:
                return backup
    return None


def require(url: str) -> None:
    """Raise TrainerError CHECKPOINT_WRITE_FAILED unless backups at the URL can be listed."""
    with _naming(f"cannot read checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        bucket = root.split("/")[0]
        if bucket and not file_system.exists(bucket):
            raise FileNotFoundError(f"there is no bucket {bucket}")
    newest(url)


def _whole(file_system: Any, folder: str) -> Backup | None:
    try:
        marker = parse_marker(file_system.cat_file(posixpath.join(folder, COMPLETE)))
        present = {file: file_system.size(posixpath.join(folder, file)) for file in marker.files}
    except (FileNotFoundError, ValueError):  # an interrupted copy
        return None
    return Backup(file_system, folder, marker) if present == marker.files else None


def _open(url: str) -> tuple[Any, str]:
    # Only the local file system needs folders created.
    options = {"auto_mkdir": True} if fsspec.utils.get_protocol(url) == "file" else {}
    try:  # a cached instance keeps old listings, and connections to a server that was down
        file_system, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        raise TrainerError(
            ExitCode.CONFIG_ERROR, f"checkpoint.backup.url {url}: {error}"
        ) from error
    return file_system, root


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except TrainerError:
        raise
    except Exception as error:
        text = f"{what}: {type(error).__name__}: {error}"
        raise TrainerError(ExitCode.CHECKPOINT_WRITE_FAILED, text) from error
