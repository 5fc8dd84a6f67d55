"""When a checkpoint, a backup of it and a validation are due. Pure."""

from raggrpo_api.trainer.config import TrainerConfig

from .checkpoint_score import is_scored_by_validation


def is_checkpoint_due(config: TrainerConfig, step: int) -> bool:
    """Return whether a checkpoint is saved after a step: every `everySteps`, and the last one."""
    every = config.checkpoint.every_steps
    return step == config.training.total_steps or (every > 0 and step % every == 0)


def is_backup_due(config: TrainerConfig, step: int) -> bool:
    """Return whether the checkpoint of a step is backed up."""
    backup = config.checkpoint.backup
    is_last = step == config.training.total_steps
    return bool(backup.url) and (is_last or step % backup.every_steps == 0)


def due_validation(config: TrainerConfig, step: int) -> str:
    """Return which validation precedes the checkpoint of a step: "during", "after" or "".

    After the last step the checkpoint comes first, unless its score is a validation metric.
    """
    every = config.validation.every_steps
    during = "during" if every and step % every == 0 else ""
    if step < config.training.total_steps:
        return during
    if not is_scored_by_validation(config):
        return ""
    return "after" if config.validation.after_training else during
