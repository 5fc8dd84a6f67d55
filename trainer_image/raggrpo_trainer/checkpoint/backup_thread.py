"""Backups in the background: one at a time, newest checkpoint first. Errors are not raised.

A daemon thread copies the checkpoints, so an exiting attempt does not wait for an unresponsive
server. An interrupted copy has no marker and is not a backup.
"""

import logging
import threading
from dataclasses import dataclass

from raggrpo_trainer.errors import TrainerError

from .folder import Checkpoint
from .store import CheckpointStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackupOutcome:
    """Outcome of a backup."""

    step: int
    failure: str = ""
    """Error message; "" if the backup is complete."""


class BackupThread:
    """Backs up saved checkpoints; a newer checkpoint replaces the pending one."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._pending: Checkpoint | None = None
        self._is_busy = False
        self._outcomes: list[BackupOutcome] = []

    def offer(self, checkpoint: Checkpoint) -> None:
        """Queue a checkpoint for backup after the current backup; returns at once."""
        self._store.protect(checkpoint)
        with self._changed:
            if self._pending is not None:
                self._store.unprotect(self._pending)
            self._pending = checkpoint
            if not self._is_busy:
                self._is_busy = True
                threading.Thread(target=self._serve, name="backup", daemon=True).start()

    def outcomes(self) -> list[BackupOutcome]:
        """Return the outcomes since the last call, oldest first."""
        with self._changed:
            outcomes = self._outcomes
            self._outcomes = []
        return outcomes

    def wait(self, seconds: float) -> bool:
        """Wait until all backups are done; return False if that takes more than `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy, seconds)

    def _serve(self) -> None:
        while (checkpoint := self._next()) is not None:
            failure = self._copy(checkpoint)
            self._store.unprotect(checkpoint)
            with self._changed:
                self._outcomes.append(BackupOutcome(checkpoint.name.step, failure))

    def _next(self) -> Checkpoint | None:
        with self._changed:
            checkpoint = self._pending
            self._pending = None
            self._is_busy = checkpoint is not None
            self._changed.notify_all()
        return checkpoint

    def _copy(self, checkpoint: Checkpoint) -> str:
        try:
            self._store.back_up(checkpoint)
        except TrainerError as error:
            log.error("%s; training continues", error)
            return str(error)
        except Exception as error:  # an internal error here must not end the run
            log.exception(
                "internal error while backing up %s; training continues", checkpoint.folder
            )
            return f"{type(error).__name__}: {error}"
        log.info("backed up %s", checkpoint.folder)
        return ""
