"""Schedule of checkpoints, backups and validations. Pure."""

from raggrpo_api.trainer.config import TrainerConfig

from .checkpoint_score import is_scored_by_validation


def is_checkpoint_due(config: TrainerConfig, step: int) -> bool:
    """Return whether a checkpoint is due: every `everySteps` steps and after the last step."""
    every = config.checkpoint.every_steps
    return step == config.training.total_steps or (every > 0 and step % every == 0)


def is_backup_due(config: TrainerConfig, step: int) -> bool:
    """Return whether a backup of the step's checkpoint is due."""
    backup = config.checkpoint.backup
    is_last = step == config.training.total_steps
    return bool(backup.url) and (is_last or step % backup.every_steps == 0)


def due_validation(config: TrainerConfig, step: int) -> str:
    """Return the validation to run before a step's checkpoint: "during", "after", or "" for none.

    After the last step, the checkpoint is saved before the validation, unless the checkpoint's
    score is a validation metric.
    """
    every = config.validation.every_steps
    during = "during" if every and step % every == 0 else ""
    if step < config.training.total_steps:
        return during
    if not is_scored_by_validation(config):
        return ""
    return "after" if config.validation.after_training else during
