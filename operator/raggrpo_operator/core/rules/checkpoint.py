"""Rules on checkpoints, backups and validation."""

from collections.abc import Iterator

from raggrpo_api.spec.checkpoint import BestBy, CheckpointSpec
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.start_from import CheckpointSource
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import is_filled, specified, value_or
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule
from .paths import checkpoint_path_condition

_VALIDATES = (
    f"{value_or('validation.beforeTraining', 'false')} || "
    f"{value_or('validation.afterTraining', 'false')} || "
    f"{value_or('validation.everySteps', '0')} > 0"
)


@spec_rule(
    "spec",
    field="checkpoint.everySteps",
    reason=Reason.RESTARTS_NEED_CHECKPOINTS,
    message="with everySteps 0 the only save is after the last step: a restart repeats all steps",
    remedy="set checkpoint.everySteps: 100, or recovery.maxRestarts: 0",
    cel=f"{value_or('checkpoint.everySteps', '1')} > 0 || "
    f"{value_or('recovery.maxRestarts', '1')} == 0",
)
def restarts_need_checkpoints(spec: JobSpec) -> bool:
    """Reject restarts without checkpoints, because each restart would repeat all steps."""
    return spec.checkpoint.every_steps > 0 or spec.recovery.max_restarts == 0


def checkpoints_precede_the_end(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if the checkpoint interval is as long as the run.

    The optimal interval is about √(2 · save time · time between failures) (Young, 1974).
    """
    every, steps = inputs.spec.checkpoint.every_steps, inputs.spec.training.total_steps
    if every and steps and every >= steps and inputs.spec.recovery.max_restarts:
        yield warning(
            "spec.checkpoint.everySteps",
            Reason.CHECKPOINTS_TOO_RARE,
            f"the checkpoint interval is not shorter than the run (interval {every} steps, "
            f"run {steps} steps): any failure loses all progress",
            f"set checkpoint.everySteps: {max(1, steps // 10)}; "
            "the optimal interval is √(2 × save time × time between failures)",
        )


@spec_rule(
    "spec.checkpoint",
    field="keepLast",
    reason=Reason.KEEP_LAST_TOO_SMALL,
    message="keepLast below 2 leaves no fallback if the newest checkpoint is damaged",
    remedy="set checkpoint.keepLast: 2 or more",
    if_specified=("keepLast",),
    cel="self.keepLast >= 2",
)
def two_checkpoints_are_kept(checkpoint: CheckpointSpec) -> bool:
    """Require a second checkpoint as a fallback in case the newest one is damaged."""
    return checkpoint.keep_last >= 2


def backups_follow_checkpoints(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if backups are due at steps without a new checkpoint."""
    checkpoint = inputs.spec.checkpoint
    every, backup = checkpoint.every_steps, checkpoint.backup
    if backup.url and every and backup.every_steps % every:
        path = "spec.checkpoint.backup.everySteps"
        message = f"{backup.every_steps} is not a multiple of checkpoint.everySteps ({every})"
        remedy = f"set checkpoint.backup.everySteps: {max(1, backup.every_steps // every) * every}"
        yield warning(path, Reason.BACKUP_NOT_A_MULTIPLE, message, remedy)


@spec_rule(
    "spec.training.startFrom.checkpoint",
    reason=Reason.START_SOURCE_AMBIGUOUS,
    message="exactly one of path and jobRef must be specified",
    remedy="specify checkpoint: {path: /mnt/runs/checkpoints/other} or {jobRef: other}",
    cel=f"{is_filled('path')} != has(self.jobRef)",
)
def start_has_one_source(source: CheckpointSource) -> bool:
    """Require one source of the checkpoint to start from."""
    return bool(source.path) != (source.job_ref is not None)


@spec_rule(
    "spec",
    field="training.startFrom.checkpoint.path",
    reason=Reason.START_IS_OWN_PATH,
    message="the path is this job's own checkpoint.path",
    remedy="specify the checkpoint.path of another job, or omit startFrom to resume",
    cel=f"!({specified('training.startFrom.checkpoint.path')}) || "
    + checkpoint_path_condition(lambda path: f"self.training.startFrom.checkpoint.path != {path}"),
)
def start_is_another_folder(spec: JobSpec) -> bool:
    """Reject a job that starts from its own checkpoint folder."""
    start = spec.training.start_from
    return start is None or start.checkpoint.path != spec.checkpoint.path


def best_is_measured(inputs: RuleInput) -> Iterator[Violation]:
    """Require validation if its results rank checkpoints; warn about unvalidated checkpoints."""
    checkpoint, validation = inputs.spec.checkpoint, inputs.spec.validation
    if not checkpoint.keep_best or checkpoint.best_by is BestBy.REWARD:
        return
    every, measured = checkpoint.every_steps, validation.every_steps
    if not measured:
        message = f"{checkpoint.best_by} is not measured, because validation.everySteps is 0"
        remedy = f"set validation.everySteps: {every or 100}, or checkpoint.bestBy: Reward"
        yield Violation("spec.checkpoint.bestBy", Reason.BEST_NOT_MEASURED, message, remedy)
    elif every % measured:
        message = (
            f"checkpoints are saved every {every} steps, but only those at a multiple of "
            f"{measured} steps are validated"
        )
        remedy = f"set validation.everySteps: {every}, or to a divisor of {every}"
        path = "spec.validation.everySteps"
        yield warning(path, Reason.BEST_RARELY_MEASURED, message, remedy)


@spec_rule(
    "spec",
    field="data.validationFiles",
    reason=Reason.VALIDATION_NEEDS_FILES,
    message="validation is enabled, but no validation files are specified",
    remedy="set data.validationFiles: [/path/to/held_out.jsonl], or disable validation",
    cel=f"!({_VALIDATES}) || size({value_or('data.validationFiles', '[]')}) > 0 || "
    f"size({value_or('data.validationSources', '[]')}) > 0",
)
def validation_has_files(spec: JobSpec) -> bool:
    """Require files with held-out prompts if validation is enabled."""
    validation = spec.validation
    is_enabled = validation.before_training or validation.after_training or validation.every_steps
    return bool(spec.data.validation_files or spec.data.validation_sources) or not is_enabled
