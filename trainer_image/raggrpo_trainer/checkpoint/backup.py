"""Backups of checkpoints at a URL that fsspec supports: file, s3, gs.

COMPLETE is copied last. As in the checkpoint path, a folder without it is not a checkpoint. fsspec
reads credentials from the environment. Must not delete anything. Clients of remote file systems
raise other errors besides OSError, so every error is caught and reported with the URL.
"""

import errno
import logging
import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from raggrpo_api import names
from raggrpo_api.fields.text import one_line
from raggrpo_api.file_names import path_below
from raggrpo_api.foreign_bodies import unsuitable_body
from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_buckets.answers import valid_answers
from raggrpo_trainer.errors import TrainerError

from .examination import Examination
from .file_digests import StoredFile, hashing_file
from .folder import (
    COMPLETE,
    MAX_MARKER_BYTES,
    Checkpoint,
    CheckpointName,
    Marker,
    parse_marker,
)

log = logging.getLogger(__name__)

UNSEALED = f"is not sealed with {names.ENV_CHECKPOINT_KEY}"
COPY_BYTES = 16 * 2**20
"""Bytes per read and write of a copy."""
READ_AHEAD_BYTES = 48 * 2**20
"""Bytes per request to remote storage, besides those of a read."""
MAX_ENTRIES = 10_000
"""Files and folders at the URL."""
MAX_CANDIDATES = 100
"""Folders at the URL that are examined, newest first."""
MAX_PROBLEM = 300
"""Characters of an error of a client, which may contain any text of the server."""
STORE_REMEDY = "check the URL, the credentials, and that the store is available"
SPACE_REMEDY = f"{STORE_REMEDY} and has space"


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete checkpoint at the backup URL."""

    file_system: Any
    folder: str
    marker: Marker

    def fetch(self, target: Path) -> dict[str, str]:
        """Copy all files except the marker into a local folder; return their digests by name.

        Raises ValueError if a file differs from its size or digest, OSError if it cannot be
        written, and TrainerError CHECKPOINT_WRITE_FAILED for errors of the storage.
        """
        files = self.marker.files.items()
        return {name: self._copy(name, target, file) for name, file in files}

    def _copy(self, name: str, target: Path, file: StoredFile) -> str:
        """Copy at most the recorded size and one more byte, however long the source is."""
        local = path_below(target, name)
        local.parent.mkdir(parents=True, exist_ok=True)
        remaining = file.size + 1
        digests: dict[str, str] = {}
        with self._open(name) as source, hashing_file(local, digests) as copy:
            while remaining and (chunk := self._read(name, source, min(COPY_BYTES, remaining))):
                remaining -= copy.write(chunk)
        if remaining != 1 or digests[local.name] != file.sha256:
            raise ValueError(f"{name} differs from its size or SHA-256 in {COMPLETE}")
        return file.sha256

    def _open(self, name: str) -> Any:
        path = posixpath.join(self.folder, name)
        # The default cache of gcsfs has no limit that callers set on a range.
        options = {"block_size": READ_AHEAD_BYTES, "cache_type": "readahead"}
        file_system = self.file_system
        with _read_errors(path):
            _size(file_system, file_system.info, path)  # it may have been replaced
            with valid_answers(file_system, path):
                return file_system.open(path, "rb", **options)

    def _read(self, name: str, source: Any, size: int) -> bytes:
        path = posixpath.join(self.folder, name)
        with _read_errors(path), valid_answers(self.file_system, path):
            content: bytes = source.read(size)
            return content


def write_backup(checkpoint: Checkpoint, url: str, check: Callable[[], None]) -> None:
    """Copy a checkpoint to a folder under the URL; call `check` before copying the marker.

    Raises TrainerError CHECKPOINT_WRITE_FAILED, and the errors of `check`.
    """
    action = f"cannot copy {checkpoint.folder} to checkpoint.backup.url {url}"
    with _translate_errors(action, SPACE_REMEDY):
        file_system, root = _open(url)
        path_of = partial(_path, file_system, posixpath.join(root, checkpoint.folder.name))
        for file in checkpoint.marker.files:
            _put(file_system, checkpoint.folder / file, path_of(file))
        check()
        _put(file_system, checkpoint.folder / COMPLETE, path_of(COMPLETE))


def _put(file_system: Any, file: Path, path: str) -> None:
    with valid_answers(file_system, path):
        file_system.put_file(str(file), path)


def complete_backups(url: str, key: str) -> Iterator[Backup]:
    """Yield the complete backups, newest first; with a key, only those that are sealed with it.

    Raises TrainerError: CHECKPOINT_WRITE_FAILED if the backups cannot be read in time, because a
    start from step 0 would then lose training progress, or if there are backups, but none is valid;
    CONFIG_ERROR if there are backups, but none is sealed.
    """
    unsealed: list[str] = []
    invalid: list[str] = []
    is_empty = True
    with _translate_errors(f"cannot read checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        examination = Examination(url, file_system)
        candidates = _candidates(url, examination, root)
    for name in candidates[:MAX_CANDIDATES]:
        with _translate_errors(f"cannot read checkpoint.backup.url {url}"):
            folder = posixpath.join(root, str(name))
            try:
                backup = _complete_backup(examination, folder, name)
            except ValueError as error:
                invalid.append(
                    f"the backup at {folder} is not used: {COMPLETE} is invalid: {error}"
                )
                log.warning("%s", invalid[-1])
                continue
        if backup is None:
            continue
        if key and not backup.marker.is_sealed_with(key):
            unsealed.append(backup.folder)
            log.warning("the backup at %s is not used: %s", backup.folder, UNSEALED)
            continue
        is_empty = False
        yield backup
    shown = display_url(url)
    if is_empty and unsealed:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"no backup at checkpoint.backup.url {shown} can be used: {unsealed[0]} {UNSEALED}; "
            "set the key with which it was written, or another URL to start over",
        )
    if is_empty and invalid:
        raise TrainerError(
            ExitCode.CHECKPOINT_WRITE_FAILED,
            f"no backup at checkpoint.backup.url {shown} is valid: {invalid[0]}; remove the "
            "folders of the invalid backups, or set another URL to start over",
        )
    if is_empty and len(candidates) > MAX_CANDIDATES:
        raise TrainerError(
            ExitCode.CHECKPOINT_WRITE_FAILED,
            f"none of the newest {MAX_CANDIDATES} folders at checkpoint.backup.url {shown} is a "
            "complete backup: remove them, or set another URL to start over",
        )


def check_readable(url: str, key: str) -> None:
    """Raise TrainerError unless backups at the URL can be read; see `complete_backups`."""
    with _translate_errors(f"cannot read checkpoint.backup.url {url}"):
        file_system, root = _open(url)
        bucket = root.split("/")[0]
        if bucket and not Examination(url, file_system).exists(bucket):
            raise FileNotFoundError(f"bucket {bucket} does not exist")
    next(complete_backups(url, key), None)


def _candidates(url: str, examination: Examination, root: str) -> list[CheckpointName]:
    file_system = examination.file_system
    if isinstance(file_system, LocalFileSystem):
        if not file_system.isdir(root):
            return []
        with os.scandir(root) as entries:
            folders = [each.name for each in islice(entries, MAX_ENTRIES + 1)]
    else:
        try:
            paths = examination.paths(root)
        except FileNotFoundError:
            return []
        folders = [posixpath.basename(each.rstrip("/")) for each in paths]
    _require_few(url, len(folders))
    return CheckpointName.among(folders)


def _complete_backup(examination: Examination, folder: str, name: CheckpointName) -> Backup | None:
    """Return a backup, or None without COMPLETE. Raises ValueError if its files differ from it."""
    file_system = examination.file_system
    try:
        marker = _read_marker(examination, _path(file_system, folder, COMPLETE), name)
    except FileNotFoundError:  # the copy was interrupted
        return None
    examination.add_files(len(marker.files))
    for file, stored in marker.files.items():
        try:
            size = _size(file_system, examination.info, _path(file_system, folder, file))
        except FileNotFoundError:
            raise ValueError(f"{file} does not exist") from None
        if size != stored.size:
            raise ValueError(f"{file} has {size:,} bytes instead of {stored.size:,}")
    return Backup(file_system, folder, marker)


def _read_marker(examination: Examination, path: str, name: CheckpointName) -> Marker:
    content = b""
    if (size := _size(examination.file_system, examination.info, path)) <= MAX_MARKER_BYTES:
        content = examination.read(path, MAX_MARKER_BYTES)
    if max(size, len(content)) > MAX_MARKER_BYTES:  # a store may ignore the range
        raise ValueError(f"it has more than {MAX_MARKER_BYTES} bytes")
    return parse_marker(content, name)


def _path(file_system: Any, folder: str, name: str) -> str:
    """Return the path of a file of a backup. Raises ValueError if it passes through a link."""
    if isinstance(file_system, LocalFileSystem):
        path_below(Path(folder).parent, posixpath.join(posixpath.basename(folder), name))
    return posixpath.join(folder, name)


def _size(file_system: Any, info_of: Callable[[str], Any], path: str) -> int:
    """Return the size of a file, whose metadata `info_of` requests.

    Raises ValueError if it is a link, a pipe, a device or an object that the client of Google Cloud
    Storage decompresses into any amount of memory.
    """
    try:
        with valid_answers(file_system, path):
            info = info_of(path)
            is_regular = info["type"] == "file" and not info.get("islink")
            encoding, size = info.get("contentEncoding"), int(info["size"])
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ValueError(f"{path} is not a regular file") from error
        raise
    if not is_regular:
        raise ValueError(f"{path} is not a regular file")
    if encoding:
        raise ValueError(f"{path} is compressed ({str(encoding)[:40]!r})")
    return size


def _open(url: str) -> tuple[Any, str]:
    file_system = _file_system(url)
    return file_system, file_system._strip_protocol(url)


def _file_system(url: str) -> Any:
    """Return a new instance: a cached one may have old listings and broken connections."""
    protocol = fsspec.utils.get_protocol(url)
    if protocol == "file":
        return LocalFileSystem(auto_mkdir=True, skip_instance_cache=True)
    if protocol not in ("s3", "gs"):
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"checkpoint.backup.url {display_url(url)} has an unknown scheme; use s3, gs or file",
        )
    from raggrpo_buckets.file_systems import LimitedGcs, LimitedS3  # importing takes seconds

    client = LimitedS3 if protocol == "s3" else LimitedGcs
    return client(partial(_require_few, url))


def _require_few(url: str, listed: int) -> None:
    if listed > MAX_ENTRIES:
        raise TrainerError(
            ExitCode.CHECKPOINT_WRITE_FAILED,
            f"checkpoint.backup.url {display_url(url)} has more than {MAX_ENTRIES:,} files and "
            "folders; remove some, or set another URL to start over",
        )


@contextmanager
def _translate_errors(action: str, remedy: str = STORE_REMEDY) -> Iterator[None]:
    try:
        yield
    except TrainerError:
        raise
    except Exception as error:
        raise _storage_error(action, remedy, error) from error


@contextmanager
def _read_errors(path: str) -> Iterator[None]:
    """Raise TrainerError for errors of the storage, so that none is taken for one of the volume.

    A ValueError says that the backup is damaged, and is not changed.
    """
    try:
        yield
    except (TrainerError, ValueError):
        raise
    except Exception as error:  # remote file systems have other errors besides OSError
        action = f"cannot read {path} from checkpoint.backup.url"
        raise _storage_error(action, STORE_REMEDY, error) from error


def _storage_error(action: str, remedy: str, error: Exception) -> TrainerError:
    if body := unsuitable_body(error):
        text = _problem(str(body))  # has a remedy
    else:
        text = f"{_problem(f'{type(error).__name__}: {error}')}; {remedy}"
    return TrainerError(ExitCode.CHECKPOINT_WRITE_FAILED, f"{display_url(action)}: {text}")


def _problem(text: str) -> str:
    # Cut after redaction: half of a URL may show its password.
    return display_url(one_line(text, 4 * MAX_PROBLEM))[:MAX_PROBLEM]
