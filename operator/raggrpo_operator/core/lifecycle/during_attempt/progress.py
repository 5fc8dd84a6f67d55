"""Copy the progress of an attempt to the status, and verify its first step. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from raggrpo_api.fields.text import one_line
from raggrpo_api.status.cause import WRITE_FAILURES
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, Pinned, ProgressStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.progress import CheckpointRef, Progress, SkippedCheckpoint, Stage
from raggrpo_operator.core.lifecycle.observed import AttemptObserved
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.state.conditions import get_condition, is_true
from raggrpo_operator.core.state.lost_steps import lost_remark
from raggrpo_operator.core.state.training_time import (
    downtime_seconds,
    retained_seconds,
    with_ratios,
)

from .learning import learning_change


def update_progress(
    this: Round, attempt: AttemptObserved | None, progress: Progress | None
) -> None:
    """Update the status and the attempt's record from `progress`, unless it is None."""
    if this.record.started is None and attempt is not None:
        this.record = replace(this.record, started=this.now)
        spent = this.state.spent
        down = downtime_seconds(this.status, this.now)
        this.store(replace(spent, down_seconds=spent.down_seconds + down))
    if progress is None:
        return
    first_step = progress.started_from_step
    was_verified = this.record.from_step is not None
    if first_step is not None and not was_verified:
        this.status = _with_corrected_loss(this.status, first_step)
    this.record = replace(
        this.record,
        from_step=this.record.from_step if first_step is None else first_step,
        to_step=progress.step,
        skipped_checkpoints=_descriptions(progress.skipped_checkpoints)[:16],
        in_place=progress.in_place,
        waiting_seconds=round(progress.waited_seconds),
    )
    if progress.save_seconds > this.state.slowest_save_seconds:
        this.state = replace(this.state, slowest_save_seconds=round(progress.save_seconds, 1))
    _verify_resume(this, progress, was_verified=was_verified)
    this.set_conditions(learning_change(this.status, progress, this.spec))
    step_before = this.status.progress.step
    this.status = replace(
        this.status,
        progress=_progress_status(progress, this.spec.training.total_steps, this.status.progress),
        pinned=_with_chosen_values(this.status.pinned, progress),
        # Until the attempt has resumed, its progress has no segments.
        segments=this.status.segments if first_step is None else progress.segments,
    )
    if this.status.progress.step != step_before:
        this.status = with_ratios(this.status, this.now)
    if progress.checkpoint is not None and is_true(this.status, ConditionType.RESUME_VERIFIED):
        # An earlier update would make `_verify_resume` compare with the attempt's own checkpoint.
        was_saved = this.status.checkpoint != progress.checkpoint
        this.status = replace(
            this.status,
            checkpoint=progress.checkpoint,
            best_step=progress.best_step,
            best_score=progress.best_score,
        )
        if was_saved or not _has_write_failed(this.status):
            _report_checkpoint(this, progress.checkpoint, progress.backup_failure)


def _with_chosen_values(pinned: Pinned, progress: Progress) -> Pinned:
    """Return `pinned` with the values that the first attempt selected for `Auto` fields."""
    chosen = progress.pinned
    return replace(
        pinned,
        precision=pinned.precision or chosen.get("precision", ""),
        attention=pinned.attention or chosen.get("attention", ""),
    )


def _with_corrected_loss(status: JobStatus, resumed_at: int) -> JobStatus:
    """Return the status with the previous attempt's lost steps recounted.

    The newest attempt has resumed at step `resumed_at`. The count made at the end of the previous
    attempt is wrong if surviving ranks were ahead of the checkpoint, if that attempt saved after
    its last observed progress, or if its newest checkpoint is damaged.
    """
    if len(status.attempts) < 2:
        return status
    record, previous, *older = status.attempts
    corrected = replace(previous, lost_steps=max(0, previous.to_step - resumed_at))
    state = status.restart_state
    step_seconds = status.progress.seconds_per_step
    change = retained_seconds(corrected, step_seconds) - retained_seconds(previous, step_seconds)
    spent = replace(state.spent, kept_seconds=round(state.spent.kept_seconds + change, 1))
    total = status.restarts.lost_steps + corrected.lost_steps - previous.lost_steps
    return replace(
        status,
        attempts=[record, corrected, *older],
        restarts=replace(status.restarts, lost_steps=total),
        restart_state=state.with_group(spent),
    )


def _report_checkpoint(this: Round, newest: CheckpointRef, backup_failure: str) -> None:
    """Set CheckpointHealthy, to False if a backup failed; the attempt continues in any case."""
    reason = ConditionReason.BACKUP_FAILED if backup_failure else ConditionReason.SAVED
    message = f"step {newest.step}{f'; {backup_failure}' if backup_failure else ''}"
    this.set_condition(ConditionType.CHECKPOINT_HEALTHY, not backup_failure, reason, message)


def _has_write_failed(status: JobStatus) -> bool:
    """Return whether no checkpoint has been saved since one could not be written."""
    return get_condition(status, ConditionType.CHECKPOINT_HEALTHY).reason in WRITE_FAILURES


def _verify_resume(this: Round, progress: Progress, *, was_verified: bool) -> None:
    """Set ResumeVerified by comparing the attempt's first step with the newest checkpoint."""
    started = progress.started_from_step
    if started is None:
        this.set_condition(ConditionType.RESUME_VERIFIED, None, ConditionReason.NOT_YET_REPORTED)
        return
    verified = get_condition(this.status, ConditionType.RESUME_VERIFIED)
    if verified.status != "Unknown" and was_verified:
        return
    expected = this.status.checkpoint.step if this.status.checkpoint else 0
    skipped = "; ".join(_descriptions(progress.skipped_checkpoints))
    lost = lost_remark(this.status)
    message = f"attempt {this.record.number}: started from step {started}"
    if started >= expected:
        message += lost
        this.set_condition(ConditionType.RESUME_VERIFIED, True, ConditionReason.VERIFIED, message)
    elif skipped:
        message += f" instead of {expected}; skipped checkpoints: {skipped}{lost}"
        this.set_condition(
            ConditionType.RESUME_VERIFIED, True, ConditionReason.OLDER_CHECKPOINT, message
        )
    else:
        message += f", expected at least {expected}"
        this.set_condition(
            ConditionType.RESUME_VERIFIED, False, ConditionReason.RESUME_MISMATCH, message
        )


def _descriptions(skipped: Sequence[SkippedCheckpoint]) -> list[str]:
    return [one_line(f"{each.path}: {each.reason}", 256) for each in skipped]


def _progress_status(progress: Progress, total_steps: int, known: ProgressStatus) -> ProgressStatus:
    """Return the progress for the status.

    `known` is the progress of earlier attempts: its step is used until the attempt reports where
    it resumed, and its step time until the first step completes.
    """
    total = progress.total_steps or total_steps
    step = known.step if progress.started_from_step is None else progress.step
    seconds_per_step = round(progress.seconds_per_step, 3) or known.seconds_per_step
    remaining = None
    if progress.seconds_per_step > 0 and progress.stage in (Stage.TRAINING, Stage.CHECKPOINTING):
        remaining = round((total - progress.step) * progress.seconds_per_step)
    return ProgressStatus(
        step=step,
        total_steps=total,
        step_of_total=f"{step}/{total}" if total else str(step),
        progress_percentage=100 * step // total if total else 0,
        estimated_remaining_seconds=remaining,
        stage=str(progress.stage),
        seconds_per_step=seconds_per_step,
        metrics=progress.metrics,
        last_updated_time=progress.time,
    )
