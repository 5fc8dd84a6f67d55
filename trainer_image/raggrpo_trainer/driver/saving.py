"""Save the position of a run: when a checkpoint is due, on a stop signal and after an error."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Segment, Stage
from raggrpo_trainer.checkpoint.backup_thread import BackupThread
from raggrpo_trainer.checkpoint.compatibility import meta_of
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.validation_result import ValidationResult
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.ranks import Ranks
from raggrpo_trainer.ranks.retained_state import TrainingPosition

from .checkpoint_schedule import is_backup_due
from .checkpoint_score import checkpoint_metrics, checkpoint_score

log = logging.getLogger(__name__)

UNSAVABLE = frozenset(
    {
        ExitCode.TRAINER_RANK_LOST,
        ExitCode.COLLECTIVE_TIMEOUT,
        ExitCode.RANKS_STUCK,
        ExitCode.CHECKPOINT_WRITE_FAILED,
        ExitCode.VOLUME_FULL,
        ExitCode.CHECKPOINT_PATH_IN_USE,
        ExitCode.SUPERSEDED,
        ExitCode.POLICY_MISMATCH,
    }
)
"""Errors after which nothing is saved: the ranks or the checkpoint folder are unusable, or the last
step was trained with wrong logprobs."""


@dataclass(slots=True)
class TrainState:
    """Position of the run: everything in a checkpoint besides model and optimizer."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    saved_step: int = 0
    validated: tuple[int, ValidationResult] | None = None
    """Step and result of the newest validation."""
    is_start: bool = False
    """Whether the job has just started from a checkpoint of another job."""
    segments: tuple[Segment, ...] = ()
    """Segments up to this step, which the next checkpoint contains."""
    reward: float | None = None
    """Mean reward of the last step, a possible score of its checkpoint (`checkpoint.bestBy`)."""

    @property
    def validation(self) -> ValidationResult | None:
        """Return the validation of the current step, or None if there was none."""
        step, result = self.validated or (None, None)
        return result if step == self.step else None

    def advance(self, position: TrainingPosition) -> None:
        """Set the position after a completed step."""
        self.step = position.step
        self.cursor = position.cursor
        self.reward = position.reward


@dataclass(frozen=True, slots=True)
class Saver:
    """Saves the ranks' state as a checkpoint."""

    config: TrainerConfig
    store: CheckpointStore
    ranks: Ranks
    reporter: Reporter
    backups: BackupThread
    identity: Mapping[str, object]
    """`Inputs.identity`; a checkpoint is compatible only if its identity is equal."""

    async def save(self, state: TrainState, reward: float | None = None) -> None:
        """Save the state, which the ranks must have; `reward` is a possible score."""
        config, store, reporter = self.config, self.store, self.reporter
        reporter.report_stage(Stage.CHECKPOINTING)
        started = time.monotonic()
        metrics = checkpoint_metrics(reward, state.validation)
        score = checkpoint_score(metrics, config.checkpoint.best_by)
        meta = meta_of(
            config,
            state.step,
            state.cursor,
            metrics,
            identity=self.identity,
            segments=state.segments,
        )
        save = partial(store.save, meta, self.ranks.save, score=score)
        checkpoint = await asyncio.to_thread(save)
        state.saved_step = state.step
        seconds = time.monotonic() - started
        reporter.report_save(checkpoint.ref(), seconds, store.best)
        if is_backup_due(config, state.step):
            self.backups.offer(checkpoint)

    async def save_after(self, error: Exception, state: TrainState) -> None:
        """Save the last completed step before `error` ends the attempt, if the ranks still have it.

        Raises nothing: `error` is what the attempt reports.
        """
        if isinstance(error, TrainerError) and error.exit_code in UNSAVABLE:
            return
        try:
            position = await self.ranks.completed()
            if position is None or position.step <= state.saved_step:
                return
            state.advance(position)
            await self.save(state, position.reward)
        except Exception as failed:
            log.error("the last completed step was not saved: %r", failed)
            return
        log.info("saved step %d before the attempt ends", state.step)
