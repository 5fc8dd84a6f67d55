"""Saving, retention and discovery of checkpoints.

    store = CheckpointStore(config.checkpoint, fence, config.attempt.config_hash)
    store.clean_up()                                     # after the previous ranks were killed
    checkpoint = store.newest or store.restore()
    store.save(meta_of(config, step, cursor, metrics), ranks.save, score=reward)

After the first save, a complete checkpoint always exists. All methods block: call them in a thread.
`folder` defines the layout, `fence` ensures a single writer, `compatibility` checks whether a
checkpoint fits the configuration.
"""

import errno
import logging
import math
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from raggrpo_api import names
from raggrpo_api.foreign_files import remove_folder
from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.spec.checkpoint import BestBy, CheckpointSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import SkippedCheckpoint
from raggrpo_trainer.errors import TrainerError

from .backup import Backup, complete_backups, write_backup
from .fence import Fence
from .file_digests import stored_files
from .folder import (
    COMPLETE,
    META,
    REJECTED,
    Checkpoint,
    CheckpointName,
    Marker,
    Meta,
    discover,
    is_complete,
    sync_tree,
    write_atomically,
    write_marker,
)

log = logging.getLogger(__name__)

SPACE_FACTOR = 1.2
"""Free space required before a save, as a multiple of the previous checkpoint's size."""


class SavePhase(StrEnum):
    """Phases of a save at which drills can inject faults."""

    SHARDS = "shards"
    """Only the shards are written."""
    COMPLETE = "complete"
    """All files except the marker are on disk."""
    RETENTION = "retention"
    """The checkpoint is complete; older checkpoints have not been removed yet."""


class CheckpointStore:
    """The checkpoints of a job, written by the holder of the fence."""

    def __init__(
        self,
        spec: CheckpointSpec,
        fence: Fence,
        config_hash: str,
        *,
        key: str = "",
        reached: Callable[[SavePhase, int], None] = lambda _phase, _step: None,
    ) -> None:
        """Find the checkpoints; `reached` is called with phase and step at each phase of a save.

        With a `key`, COMPLETE is sealed, and backups without the seal are not fetched.
        """
        self._spec = spec
        self._fence = fence
        self._config_hash = config_hash
        self._key = key
        self._reached = reached
        self._path = fence.path
        self._lock = threading.Lock()
        self._protected: set[CheckpointName] = set()
        self.checkpoints: list[Checkpoint] = []
        """Usable checkpoints, newest first."""
        self.skipped: list[SkippedCheckpoint] = []
        """Unusable checkpoints with their reasons, also those that `clean_up` has removed."""
        self._discover()

    @property
    def newest(self) -> Checkpoint | None:
        """Return the newest usable checkpoint, or None."""
        return self.checkpoints[0] if self.checkpoints else None

    @property
    def best(self) -> Checkpoint | None:
        """Return the checkpoint with the highest score by `bestBy`, or None."""
        return best_of(self.checkpoints, self._spec.best_by)

    def save(
        self,
        meta: Meta,
        save_shards: Callable[[Path], Mapping[str, str]],
        *,
        score: float | None = None,
    ) -> Checkpoint:
        """Save a checkpoint, then remove the checkpoints that are not retained.

        `save_shards` writes into the given folder, returns the SHA-256 of the files by name (files
        without one are read again) and raises OSError if that fails. A step that this attempt has
        already saved is not saved again. Raises TrainerError: VOLUME_FULL, CHECKPOINT_WRITE_FAILED,
        and the errors of Fence.check.
        """
        with self._lock:
            name = CheckpointName(meta.step, self._fence.epoch)
            for existing in self.checkpoints:
                if existing.name == name:
                    return existing

            def fill(folder: Path) -> Mapping[str, str]:
                digests = save_shards(folder)
                self._reached(SavePhase.SHARDS, meta.step)
                (folder / META).write_text(meta.to_json())
                return digests

            checkpoint = self._write(name, fill, meta.world_size, score, self._spec.best_by)
            self._reached(SavePhase.RETENTION, meta.step)
            self._remove_old()
            return checkpoint

    def reject(self, checkpoint: Checkpoint, reason: str) -> None:
        """Mark a checkpoint as unusable for all attempts, for example after a failed load."""
        with self._lock, _translate_errors(checkpoint.folder):
            write_atomically(checkpoint.folder / REJECTED, reason)
            self._discover()

    def reject_all(self, folders: Collection[str], reason: str) -> None:
        """Reject the checkpoints in these folders, but never the last usable checkpoint."""
        for checkpoint in self.checkpoints:
            if str(checkpoint.folder) in folders and len(self.checkpoints) > 1:
                self.reject(checkpoint, reason)

    def clean_up(self) -> None:
        """Remove incomplete folders of killed attempts. Call it after their ranks were killed."""
        with self._lock, _translate_errors(self._path):
            for name in CheckpointName.all_in(self._path):
                folder = self._path / str(name)
                if not is_complete(folder):
                    _remove_folder(folder)
            for leftover in self._path.glob(f"{names.EXPORT_DIR}.*.tmp"):
                _remove_folder(leftover)

    def export(self, write: Callable[[Path], None]) -> Path:
        """Replace the exported model with a folder that `write` fills; return its path."""
        target = self._path / names.EXPORT_DIR
        draft = target.with_name(f"{target.name}.e{self._fence.epoch}.tmp")
        replaced = target.with_name(f"{target.name}.old.tmp")
        with self._lock, _translate_errors(draft):
            for leftover in (draft, replaced):
                _remove_folder(leftover)
            draft.mkdir()
            write(draft)
            sync_tree(draft)
            self._fence.check()
            if target.exists():
                target.rename(replaced)
            draft.rename(target)
            _remove_folder(replaced, ignore_errors=True)
        return target

    def protect(self, checkpoint: Checkpoint) -> None:
        """Exempt a checkpoint from retention until `unprotect`."""
        self._protected.add(checkpoint.name)

    def unprotect(self, checkpoint: Checkpoint) -> None:
        """End the exemption that `protect` started."""
        self._protected.discard(checkpoint.name)

    def back_up(self, checkpoint: Checkpoint) -> None:
        """Copy a protected checkpoint to checkpoint.backup.url."""
        write_backup(checkpoint, self._spec.backup.url, self._fence.check)

    def restore(self) -> Checkpoint | None:
        """Fetch the newest intact backup as a checkpoint of this epoch; return None without one.

        Raises TrainerError CHECKPOINT_WRITE_FAILED if backups exist but none can be used.
        """
        if not self._spec.backup.url:
            return None
        damage = ""
        for backup in complete_backups(self._spec.backup.url, self._key):
            try:
                with self._lock:
                    return self._fetch(backup)
            except ValueError as error:
                damage = f"the backup at {backup.folder} is damaged: {error}"
                log.warning("%s; trying an older one", damage)
        if damage:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"no backup at checkpoint.backup.url {display_url(self._spec.backup.url)} can be "
                f"used: {damage}; remove the damaged backups, or set another URL to start over",
            )
        return None

    def _fetch(self, backup: Backup) -> Checkpoint:
        marker = backup.marker
        name = CheckpointName(marker.step, self._fence.epoch)
        if marker.size > shutil.disk_usage(self._path).free:
            raise _volume_full(self._path, f"the backup needs {_gib(marker.size)}")
        return self._write(name, backup.fetch, marker.world_size, marker.score, marker.scored_by)

    def _discover(self) -> None:
        self.checkpoints, skipped = discover(self._path, self._fence.validity)
        known = {each.path for each in skipped} | {str(each.folder) for each in self.checkpoints}
        self.skipped = [*skipped, *(each for each in self.skipped if each.path not in known)]

    def _write(
        self,
        name: CheckpointName,
        fill: Callable[[Path], Mapping[str, str]],
        world_size: int,
        score: float | None,
        scored_by: str,
    ) -> Checkpoint:
        """Write a checkpoint folder, COMPLETE last; a failure does not affect other folders."""
        folder = self._path / str(name)
        self._fence.check()
        self._require_space()
        try:
            with _translate_errors(folder):
                _remove_folder(folder)  # left by a failed save
                folder.mkdir()
                digests = fill(folder)
                marker = Marker(
                    step=name.step,
                    epoch=name.epoch,
                    attempt=self._fence.own_claim.attempt,
                    world_size=world_size,
                    config_hash=self._config_hash,
                    time=datetime.now(UTC).isoformat(timespec="seconds"),
                    score=score,
                    files=stored_files(folder, digests),
                    scored_by=scored_by,
                )
                sync_tree(folder)
                self._reached(SavePhase.COMPLETE, name.step)
                self._fence.check()
                write_marker(folder, marker, self._key)
        except BaseException:
            # Errors of the removal must not hide the original error; clean_up removes the rest.
            _remove_folder(folder, ignore_errors=True)
            raise
        self._discover()
        written = next((c for c in self.checkpoints if c.name == name), None)
        if written is None:  # possible only for the content of a backup
            reasons = [each.reason for each in self.skipped if each.path == str(folder)]
            _remove_folder(folder, ignore_errors=True)
            raise ValueError("; ".join(reasons))
        return written

    def _require_space(self) -> None:
        if self.newest is None:
            return
        needed = SPACE_FACTOR * self.newest.size
        if shutil.disk_usage(self._path).free < needed:
            raise _volume_full(self._path, f"a checkpoint needs {_gib(needed)}")

    def _remove_old(self) -> None:
        """Remove all checkpoint folders older than the newest `keepLast`, except the best.

        Damaged, rejected and incomplete folders are removed, too.
        """
        best_by = self._spec.best_by if self._spec.keep_best else None
        keep = retained_names(self.checkpoints, self._spec.keep_last, best_by)
        recent = [c.name for c in self.checkpoints[: self._spec.keep_last]]
        if len(recent) < self._spec.keep_last:
            return
        for name in CheckpointName.all_in(self._path):
            if name in keep or name in self._protected or name > recent[-1]:
                continue
            self._fence.check()
            with _translate_errors(self._path / str(name)):
                _remove(self._path / str(name))
        self.checkpoints = [c for c in self.checkpoints if c.folder.exists()]


def retained_names(
    checkpoints: Sequence[Checkpoint], keep_last: int, best_by: BestBy | None
) -> frozenset[CheckpointName]:
    """Return the names to retain: the newest `keep_last` and, with `best_by`, the best."""
    newest_first = sorted((c.name for c in checkpoints), reverse=True)
    best = best_of(checkpoints, best_by) if best_by else None
    return frozenset(newest_first[:keep_last]) | ({best.name} if best else set())


def best_of(checkpoints: Sequence[Checkpoint], best_by: str) -> Checkpoint | None:
    """Return the checkpoint with the highest score by `best_by`; of equal scores, the newest."""
    comparable = [c for c in checkpoints if c.marker.scored_by == best_by]
    scored = [c for c in comparable if c.score > -math.inf]  # also excludes NaN
    return max(scored, key=lambda c: (c.score, c.name), default=None)


def _remove(folder: Path) -> None:
    # Remove the marker first: after a kill, the next start removes the incomplete folder.
    if folder.is_dir() and not folder.is_symlink():
        (folder / COMPLETE).unlink(missing_ok=True)
    _remove_folder(folder)


def _remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder, if it exists. Links, files and pipes remain: no attempt creates them."""
    if folder.is_dir() and not folder.is_symlink():
        remove_folder(folder, ignore_errors=ignore_errors)


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a TrainerError with the path and the remedy."""
    try:
        yield
    except OSError as error:
        number = _errno(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise _volume_full(path, f"cannot write {path}") from error
        name = errno.errorcode.get(number, str(number))
        raise TrainerError(
            ExitCode.CHECKPOINT_WRITE_FAILED, f"cannot write {path} ({name}): {error}"
        ) from error


def _errno(error: OSError) -> int:
    """Return the errno of an OSError; Ray's copy of a rank's error has the errno in `cause`."""
    return error.errno or getattr(getattr(error, "cause", None), "errno", None) or errno.EIO


def _volume_full(path: Path, failure: str) -> TrainerError:
    volume = path
    while not volume.is_mount():
        volume = volume.parent
    usage = shutil.disk_usage(volume)
    return TrainerError(
        ExitCode.VOLUME_FULL,
        f"{failure}: the volume at {volume} has {_gib(usage.free)} of {_gib(usage.total)} free; "
        "enlarge the volume, remove files, or lower checkpoint.keepLast",
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
