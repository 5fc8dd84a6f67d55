"""Backups of checkpoints at a URL that fsspec supports: file, s3, gs.

COMPLETE is copied last. As in the checkpoint path, a folder without it is not a checkpoint. fsspec
reads credentials from the environment. Must not delete anything. Clients of remote file systems
raise other errors besides OSError, so every error is caught and reported with the URL.
"""

import logging
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .file_names import path_below
from .folder import COMPLETE, Checkpoint, CheckpointName, Marker, parse_marker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete checkpoint at the backup URL."""

    file_system: Any
    folder: str
    marker: Marker

    def fetch(self, target: Path) -> None:
        """Copy all files except the marker into a local folder."""
        for file in self.marker.files:
            local = path_below(target, file)
            local.parent.mkdir(parents=True, exist_ok=True)
            self.file_system.get_file(posixpath.join(self.folder, file), str(local))


def write_backup(checkpoint: Checkpoint, url: str, check: Callable[[], None]) -> None:
    """Copy a checkpoint to a folder under the URL; call `check` before copying the marker.

    Raises TrainerError CHECKPOINT_WRITE_FAILED, and the errors of `check`.
    """
    with _translate_errors(f"cannot copy {checkpoint.folder} to checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        folder = posixpath.join(root, checkpoint.folder.name)
        for file in checkpoint.marker.files:
            file_system.put_file(str(checkpoint.folder / file), posixpath.join(folder, file))
        check()
        file_system.put_file(str(checkpoint.folder / COMPLETE), posixpath.join(folder, COMPLETE))


def newest_backup(url: str) -> Backup | None:
    """Return the newest backup whose files all exist with the recorded size, or None.

    Raises TrainerError CHECKPOINT_WRITE_FAILED if the backups cannot be read, because a start from
    step 0 would then lose training progress.
    """
    with _translate_errors(f"cannot read checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        if not file_system.isdir(root):
            return None
        folders = (posixpath.basename(p.rstrip("/")) for p in file_system.ls(root, detail=False))
        for name in CheckpointName.among(folders):
            backup = _complete_backup(file_system, posixpath.join(root, str(name)))
            if backup is not None:
                return backup
    return None


def check_readable(url: str) -> None:
    """Raise TrainerError CHECKPOINT_WRITE_FAILED unless backups at the URL can be read."""
    with _translate_errors(f"cannot read checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        bucket = root.split("/")[0]
        if bucket and not file_system.exists(bucket):
            raise FileNotFoundError(f"bucket {bucket} does not exist")
    newest_backup(url)


def _complete_backup(file_system: Any, folder: str) -> Backup | None:
    try:
        marker = parse_marker(file_system.cat_file(posixpath.join(folder, COMPLETE)))
        sizes = {file: file_system.size(posixpath.join(folder, file)) for file in marker.files}
    except FileNotFoundError:  # the copy was interrupted
        return None
    except ValueError as error:
        log.warning("the backup at %s is not used: %s is invalid: %s", folder, COMPLETE, error)
        return None
    return Backup(file_system, folder, marker) if sizes == marker.files else None


def _open(url: str) -> tuple[Any, str]:
    # Only the local file system needs folders to be created.
    options = {"auto_mkdir": True} if fsspec.utils.get_protocol(url) == "file" else {}
    try:  # a cached instance may have old listings and broken connections
        file_system, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        raise TrainerError(
            ExitCode.CONFIG_ERROR, f"cannot open checkpoint.backup.url {url}: {error}"
        ) from error
    return file_system, root


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    try:
        yield
    except TrainerError:
        raise
    except Exception as error:
        text = f"{action}: {type(error).__name__}: {error}"
        raise TrainerError(ExitCode.CHECKPOINT_WRITE_FAILED, text) from error
