"""Selection of a complete checkpoint to read. Must not write: a running attempt may own the folder.

checkpoint = select_checkpoint(Path("/checkpoints/demo"), "best")
"""

from collections.abc import Sequence
from pathlib import Path

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import SkippedCheckpoint
from raggrpo_trainer.errors import TrainerError

from .fence import validity
from .folder import Checkpoint, CheckpointName, discover
from .store import best_of

NEWEST, BEST = "newest", "best"
MAX_DIGITS = 18
"""Digits of a step, as in the name of a checkpoint."""


def select_checkpoint(path: Path, step: str = NEWEST) -> Checkpoint:
    """Return a complete checkpoint: `newest`, `best` (by checkpoint.bestBy) or a step number.

    `path` is a checkpoint folder of a job, or the folder of one checkpoint. Raises TrainerError
    CONFIG_ERROR if there is no such checkpoint; the message lists the existing ones.
    """
    if not path.is_dir():
        raise _not_found(f"{path} is not a folder")
    if names := CheckpointName.among([path.name]):
        usable, skipped = discover(path.parent, validity(path.parent))
        usable = [each for each in usable if each.name == names[0]]
        skipped = [each for each in skipped if each.path == str(path)]
    else:
        usable, skipped = discover(path, validity(path))
    if not usable:
        raise _not_found(f"{path} has no complete checkpoint{_reasons(skipped)}")
    selected = _selected(usable, step.strip().lower())
    if selected is None:
        steps = ", ".join(str(each.name.step) for each in usable)
        detail = "none has a score" if step.lower() == BEST else f"step {step} does not exist"
        raise _not_found(f"{path}: {detail}; complete checkpoints: {steps}{_reasons(skipped)}")
    return selected


def _selected(usable: Sequence[Checkpoint], step: str) -> Checkpoint | None:
    if step == NEWEST:
        return usable[0]
    if step == BEST:
        return best_of(usable, usable[0].marker.scored_by)
    if not step.isdecimal() or len(step) > MAX_DIGITS:
        raise _not_found(f"{step[:40]!r} is not {NEWEST}, {BEST} or a step number")
    return next((each for each in usable if each.name.step == int(step)), None)


def _reasons(skipped: Sequence[SkippedCheckpoint]) -> str:
    reasons = "; ".join(f"{each.path}: {each.reason}" for each in skipped)
    return f"; not usable: {reasons}" if reasons else ""


def _not_found(message: str) -> TrainerError:
    return TrainerError(ExitCode.CONFIG_ERROR, message)
