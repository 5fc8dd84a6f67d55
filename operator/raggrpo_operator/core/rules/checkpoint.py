"""Rules about checkpoints, backups and validation."""

from collections.abc import Iterator

from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning


def restarts_need_checkpoints(given: RuleInput) -> Iterator[Violation]:
    """Reject restarts without checkpoints, which would begin from scratch."""
    restarts = given.spec.recovery.max_restarts
    if not given.spec.checkpoint.every_steps and restarts:
        path = "spec.checkpoint.everySteps"
        message = f"0 saves only at the end, and recovery.maxRestarts is {restarts}"
        remedy = "checkpoint.everySteps: 100, or recovery.maxRestarts: 0"
        yield Violation(path, Reason.RESTARTS_NEED_CHECKPOINTS, message, remedy)


def checkpoints_come_in_time(given: RuleInput) -> Iterator[Violation]:
    """Warn of an interval as long as the run; the best one is √(2 · save time · MTTF)."""
    every, steps = given.spec.checkpoint.every_steps, given.spec.training.total_steps
    if every and steps and every >= steps and given.spec.recovery.max_restarts:
        yield warning(
            "spec.checkpoint.everySteps",
            Reason.CHECKPOINTS_TOO_RARE,
            f"every {every} steps of {steps}: a failure loses everything before the end",
            f"checkpoint.everySteps: {max(1, steps // 10)}; "
            "best is √(2 × save time × time between failures)",
        )


def two_checkpoints_are_kept(given: RuleInput) -> Iterator[Violation]:
    """Require a checkpoint to fall back to when the newest is damaged."""
    if given.spec.checkpoint.keep_last < 2:
        message = "with 1 there is nothing to fall back to when the newest is damaged"
        remedy = "checkpoint.keepLast: 2 or more"
        yield Violation("spec.checkpoint.keepLast", Reason.KEEP_LAST_TOO_SMALL, message, remedy)


def backups_meet_checkpoints(given: RuleInput) -> Iterator[Violation]:
    """Warn of backups due when there is no checkpoint to copy."""
    checkpoint = given.spec.checkpoint
    every, backup = checkpoint.every_steps, checkpoint.backup
    if backup.url and every and backup.every_steps % every:
        path = "spec.checkpoint.backup.everySteps"
        message = f"{backup.every_steps} is no multiple of checkpoint.everySteps {every}"
        remedy = f"checkpoint.backup.everySteps: {max(1, backup.every_steps // every) * every}"
        yield warning(path, Reason.BACKUP_NOT_A_MULTIPLE, message, remedy)


def best_is_measured(given: RuleInput) -> Iterator[Violation]:
    """Require validations where they judge checkpoints, and warn of checkpoints without one."""
    checkpoint, validation = given.spec.checkpoint, given.spec.validation
    if not checkpoint.keep_best or checkpoint.best_by is BestBy.REWARD:
        return
    every, measured = checkpoint.every_steps, validation.every_steps
    if not measured:
        message = f"{checkpoint.best_by} is never measured while checkpoints are written"
        remedy = f"validation.everySteps: {every or 100}, or checkpoint.bestBy: Reward"
        yield Violation("spec.checkpoint.bestBy", Reason.BEST_NOT_MEASURED, message, remedy)
    elif every % measured:
        message = f"of checkpoints every {every} steps only those at a multiple of {measured} count"
        remedy = f"validation.everySteps: {every}, or a divisor of it"
        path = "spec.validation.everySteps"
        yield warning(path, Reason.BEST_RARELY_MEASURED, message, remedy)


def validation_has_files(given: RuleInput) -> Iterator[Violation]:
    """Require held-out prompts for validation."""
    validation = given.spec.validation
    wanted = {
        "beforeTraining": validation.before_training,
        "everySteps": validation.every_steps > 0,
        "afterTraining": validation.after_training,
    }
    asked = [name for name, is_on in wanted.items() if is_on]
    if asked and not given.spec.data.validation_files:
        message = f"validation.{asked[0]} is on and there are no validation files"
        remedy = "data.validationFiles: [/path/to/held_out.jsonl], or switch validation off"
        yield Violation("spec.data.validationFiles", Reason.VALIDATION_NEEDS_FILES, message, remedy)
