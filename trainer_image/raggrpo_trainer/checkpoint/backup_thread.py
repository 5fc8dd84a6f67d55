"""Backups in the background: one at a time, newest checkpoint first. Errors are never raised.

A daemon thread, so that an attempt that has to end never waits for an unresponsive server. An
interrupted copy has no marker and therefore does not count as a backup.
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
    """The outcome of one backup."""

    step: int
    failure: str = ""
    """Empty if the backup is complete."""


class BackupThread:
    """Backs up checkpoints as they are saved; a waiting one is skipped when a newer one arrives."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._waiting: Checkpoint | None = None
        self._is_busy = False
        self._outcomes: list[BackupOutcome] = []

    def offer(self, checkpoint: Checkpoint) -> None:
        """Queue a checkpoint for backup once the current one is done; returns at once."""
        self._store.hold(checkpoint)
        with self._changed:
            if self._waiting is not None:
                self._store.release(self._waiting)
            self._waiting = checkpoint
            if not self._is_busy:
                self._is_busy = True
                threading.Thread(target=self._serve, name="backup", daemon=True).start()

    def outcomes(self) -> list[BackupOutcome]:
        """Return the backups that ended since the last call, oldest first."""
        with self._changed:
            ended, self._outcomes = self._outcomes, []
        return ended

    def wait(self, seconds: float) -> bool:
        """Wait until all backups are done; False if that takes longer than `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy, seconds)

    def _serve(self) -> None:
        while (checkpoint := self._next()) is not None:
            failure = self._copy(checkpoint)
            self._store.release(checkpoint)
            with self._changed:
                self._outcomes.append(BackupOutcome(checkpoint.name.step, failure))

    def _next(self) -> Checkpoint | None:
        with self._changed:
            checkpoint, self._waiting = self._waiting, None
            self._is_busy = checkpoint is not None
            self._changed.notify_all()
        return checkpoint

    def _copy(self, checkpoint: Checkpoint) -> str:
        try:
            self._store.back_up(checkpoint)
        except TrainerError as error:
            log.error("%s; training goes on", error)
            return str(error)
        except Exception as error:  # a bug here must not end a run whose checkpoints are fine
            log.exception("the backup of %s has a bug; training goes on", checkpoint.folder)
            return f"{type(error).__name__}: {error}"
        log.info("backed up %s", checkpoint.folder)
        return ""
