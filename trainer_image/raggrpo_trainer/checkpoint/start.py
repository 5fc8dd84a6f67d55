"""The checkpoint of another job that a new job starts from (`training.startFrom`). Only reads."""

from collections.abc import Mapping
from pathlib import Path

from raggrpo_api.spec.start_from import DataStart, OptimizerStart, StartFrom
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import MAX_CHANGES, Segment
from raggrpo_trainer.errors import TrainerError

from .compatibility import NOTHING, change_lines
from .folder import Checkpoint
from .selection import select_checkpoint


def start_checkpoint(config: TrainerConfig, start: StartFrom) -> Checkpoint:
    """Return the checkpoint that the job starts from.

    Raises TrainerError CONFIG_ERROR if there is none, or if the job ends at its step.
    """
    try:
        checkpoint = select_checkpoint(Path(start.checkpoint.path), start.step)
    except TrainerError as error:
        message = f"training.startFrom.checkpoint: {error}"
        raise TrainerError(ExitCode(error.exit_code), message) from error
    step, total = checkpoint.meta.step, config.training.total_steps
    if 0 < total <= step:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"training.startFrom: the checkpoint is that of step {step}, and the job ends after "
            f"step {total}; increase training.totalSteps, which counts the steps of both jobs",
        )
    return checkpoint


def verify(checkpoint: Checkpoint) -> None:
    """Compare all files with their digests. Raises TrainerError CONFIG_ERROR if one differs."""
    try:
        checkpoint.verify()
    except ValueError as error:
        message = f"training.startFrom.checkpoint: {error}; select another step"
        raise TrainerError(ExitCode.CONFIG_ERROR, message) from error


def start_segments(
    checkpoint: Checkpoint,
    config: TrainerConfig,
    start: StartFrom,
    *,
    identity: Mapping[str, object] = NOTHING,
) -> tuple[Segment, ...]:
    """Return the segments of the other job, and the first one of this job."""
    meta = checkpoint.meta
    changes = change_lines(meta, config, identity=identity)
    if start.optimizer is OptimizerStart.RESET:
        changes.append("optimizer state: reset")
    if start.data is DataStart.RESTART:
        changes.append("data position: first row")
    first = Segment(
        first_step=meta.step + 1,
        changes=changes[:MAX_CHANGES],
        from_checkpoint=str(checkpoint.folder),
    )
    return (*meta.segments, first)
