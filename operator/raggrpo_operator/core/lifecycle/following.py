"""Following a running attempt: its progress into status, resume verified, hangs found."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from raggrpo_api.progress import CheckpointRef, Progress, Stage
from raggrpo_api.status import AttemptRecord, Cause, ConditionType, Pinned, ProgressStatus
from raggrpo_operator.core.sizing.grace import grace_seconds
from raggrpo_operator.core.state.conditions import (
    STARTING,
    get_condition,
    is_true,
)
from raggrpo_operator.core.state.training_time import effective_ratio, seconds_down

from .actions import DeleteCluster, DumpStacks, StopAttempt
from .round import Decision, Round
from .trends import degradation, note_trends
from .watchdog import overdue, watch

FOLLOW_SECONDS = 1.0
STOP_SECONDS = 60.0
"""How much longer than its grace a driver may take to end after it was told to."""


def own_progress(this: Round, record: AttemptRecord) -> Progress | None:
    """Return the progress if it is about this attempt; an older attempt's says nothing."""
    progress = this.observed.progress
    return progress if progress is not None and progress.attempt == record.number else None


def note_progress(this: Round, record: AttemptRecord, progress: Progress | None) -> AttemptRecord:
    """Bring status and the attempt's record up to date with what was read."""
    attempt = this.observed.attempt
    if not record.started and attempt is not None and attempt.number == record.number:
        record = replace(record, started=this.now)
        spent = this.state.spent
        down = spent.down_seconds + seconds_down(this.status, this.now)
        this.state = replace(this.state, spent=replace(spent, down_seconds=down))
    if progress is not None:
        if record.from_step is None and progress.started_from_step is not None:
            _correct_loss(this, progress.started_from_step)
        record = _with_progress(record, progress)
    this.status = replace(this.status, attempts=[record, *this.status.attempts[1:]])
    if progress is not None:
        _note_progress_of_job(this, progress)
    return record


def _with_progress(record: AttemptRecord, progress: Progress) -> AttemptRecord:
    skipped = [f"{each.path}: {each.reason}" for each in progress.skipped_checkpoints]
    began = progress.started_from_step
    return replace(
        record,
        from_step=record.from_step if began is None else began,
        to_step=progress.step,
        skipped_checkpoints=skipped[:16],
        in_place=progress.in_place,
    )


def _note_progress_of_job(this: Round, progress: Progress) -> None:
    if progress.save_seconds > this.state.slowest_save_seconds:
        this.state = replace(this.state, slowest_save_seconds=round(progress.save_seconds, 1))
    _verify_resume(this, progress)
    has_moved = progress.step != this.status.progress.step
    this.status = replace(
        this.status,
        progress=_progress_status(this, progress),
        pinned=_with_choices(this.status.pinned, progress.pinned),
    )
    if has_moved:
        ratio = effective_ratio(this.status, this.now)
        this.status = replace(this.status, effective_training_time_ratio=ratio)
    if progress.checkpoint is not None and is_true(this.status, ConditionType.RESUME_VERIFIED):
        # Before that it would be the attempt's own word about what it has to be measured by.
        this.status = replace(
            this.status, checkpoint=progress.checkpoint, best_step=progress.best_step
        )
        _tell_checkpoint(this, progress.checkpoint, progress.backup_failure)


def _with_choices(pinned: Pinned, chosen: Mapping[str, str]) -> Pinned:
    """Return the pins with what Auto chose in an attempt; the first choice is kept."""
    return replace(
        pinned,
        precision=pinned.precision or chosen.get("precision", ""),
        attention=pinned.attention or chosen.get("attention", ""),
    )


def _correct_loss(this: Round, resumed_at: int) -> None:
    """Count what the attempt before lost anew, now that it is seen what has to be repeated.

    A driver may have saved after its progress was last read, or its newest checkpoint is damaged.
    """
    if len(this.status.attempts) < 2:
        return
    record, before, *older = this.status.attempts
    lost = max(0, before.to_step - resumed_at)
    total = this.status.restarts.lost_steps + lost - before.lost_steps
    this.status = replace(
        this.status,
        attempts=[record, replace(before, lost_steps=lost), *older],
        restarts=replace(this.status.restarts, lost_steps=total),
    )


def _tell_checkpoint(this: Round, newest: CheckpointRef, backup_failure: str) -> None:
    """Name the newest checkpoint; a backup that fails ends nothing, but somebody must know."""
    reason = "BackupFailed" if backup_failure else "Saved"
    message = f"step {newest.step}{f'; {backup_failure}' if backup_failure else ''}"
    this.condition(ConditionType.CHECKPOINT_HEALTHY, not backup_failure, reason, message)


def follow(this: Round, record: AttemptRecord, progress: Progress | None) -> Decision:
    """Decide about an attempt that has not ended: let it run, or stop it with a recorded cause."""
    is_queued = this.observed.cluster is not None and this.observed.cluster.is_queued
    if this.state.retry.intent is not None:  # recorded in an earlier round: now it may be done
        if is_queued:  # a queue ends the pods, and they have the driver save
            return this.end(FOLLOW_SECONDS)
        return _stop(this, record)
    if this.job.spec.suspend:
        return _intend(this, Cause.SUSPENDED, "spec.suspend is true")
    if _deadline_passed(this, record):
        limit = this.job.spec.active_deadline_seconds
        return _intend(this, Cause.DEADLINE_EXCEEDED, f"activeDeadlineSeconds {limit} is over")
    if is_queued:  # recorded: its pods may be gone only after the queue admits it again
        return _intend(this, Cause.PREEMPTED, "saves and ends")
    if progress is None:
        return _unreachable(this)
    if this.status.attempts[0].from_step is not None and not is_true(
        this.status, ConditionType.RESUME_VERIFIED
    ):
        return _intend(this, Cause.RESUME_MISMATCH, "the attempt did not resume where it should")
    watched = watch(this.state.watch, progress, this.now)
    this.state = replace(this.state, watch=watched)
    late = overdue(watched, progress, this.resolved.spec.recovery.deadlines, this.now)
    if late is not None:
        this.condition(ConditionType.STALLED, True, "Stalled", late)
        this.actions.append(DumpStacks(record.number))
        return _intend(this, Cause.STALLED, late)
    this.condition(ConditionType.STALLED, False, "Moving")
    note_trends(this, progress)
    if this.resolved.spec.recovery.restart_when_degraded and (why := degradation(this.status)):
        return _intend(this, Cause.DEGRADED, why)
    stage = "Starting" if progress.stage in STARTING else "Training"
    this.condition(ConditionType.PROGRESSING, True, stage, f"attempt {record.number}")
    return this.end(FOLLOW_SECONDS)


def _stop(this: Round, record: AttemptRecord) -> Decision:
    """Stop the attempt; a driver that outlives even SIGKILL goes with its cluster."""
    limit = grace_seconds(this.resolved.spec, this.status) + STOP_SECONDS
    lasted = this.elapsed(
        get_condition(this.status, ConditionType.PROGRESSING).last_transition_time
    )
    is_stuck = lasted > limit
    this.actions.append(DeleteCluster(record.cluster) if is_stuck else StopAttempt(record.number))
    return this.end(FOLLOW_SECONDS)


def _intend(this: Round, cause: Cause, message: str) -> Decision:
    """Record why the attempt will be stopped; the next round stops it."""
    this.intend(cause)
    this.condition(ConditionType.PROGRESSING, False, str(cause), message)
    return this.end(requeue_after=0.0)


def why_stopped(this: Round, cause: Cause) -> str:
    """Return what was recorded when the attempt was told to stop for this cause, else ""."""
    told = get_condition(this.status, ConditionType.PROGRESSING)
    is_told = this.state.retry.intent is cause and told.reason == str(cause)
    return told.message if is_told else ""


def _unreachable(this: Round) -> Decision:
    """Give an unreadable /progress its own long deadline; nothing is killed for one bad read."""
    since = this.state.watch.unread_since or this.now
    this.state = replace(this.state, watch=replace(this.state.watch, unread_since=since))
    limit = this.resolved.spec.recovery.deadlines.progress_unreachable_seconds
    if this.elapsed(since) > limit:
        return _intend(this, Cause.PROGRESS_UNREACHABLE, f"no /progress for {limit} s")
    return this.end(FOLLOW_SECONDS)


def _verify_resume(this: Round, progress: Progress) -> None:
    """Compare the step an attempt began at with the newest checkpoint seen before it."""
    record = this.status.attempts[0]
    started = progress.started_from_step
    reason = f"attempt {record.number}: "
    if started is None:
        this.condition(ConditionType.RESUME_VERIFIED, None, "NotYetKnown")
        return
    settled = this.status.conditions and any(
        c.type is ConditionType.RESUME_VERIFIED
        and c.status != "Unknown"
        and c.message.startswith(reason)
        for c in this.status.conditions
    )
    if settled:
        return
    expected = this.status.checkpoint.step if this.status.checkpoint else 0
    skipped = [s for s in progress.skipped_checkpoints]
    if started >= expected:
        message = f"{reason}began after step {started}"
        this.condition(ConditionType.RESUME_VERIFIED, True, "Verified", message)
    elif skipped:
        names = "; ".join(f"{s.path}: {s.reason}" for s in skipped)
        message = f"{reason}began after step {started} instead of {expected}, skipped {names}"
        this.condition(ConditionType.RESUME_VERIFIED, True, "OlderCheckpoint", message)
    else:
        message = f"{reason}began after step {started}, expected at least {expected}"
        this.condition(ConditionType.RESUME_VERIFIED, False, "ResumeMismatch", message)


def _progress_status(this: Round, progress: Progress) -> ProgressStatus:
    total = progress.total_steps or this.total_steps
    remaining = None
    if progress.seconds_per_step > 0 and progress.stage in (Stage.TRAINING, Stage.CHECKPOINTING):
        remaining = round((total - progress.step) * progress.seconds_per_step)
    return ProgressStatus(
        step=progress.step,
        total_steps=total,
        step_of_total=f"{progress.step}/{total}" if total else str(progress.step),
        progress_percentage=100 * progress.step // total if total else 0,
        estimated_remaining_seconds=remaining,
        stage=str(progress.stage),
        seconds_per_step=round(progress.seconds_per_step, 3),
        metrics=progress.metrics,
        last_updated_time=progress.time,
    )


def _deadline_passed(this: Round, record: AttemptRecord) -> bool:
    """Tell whether all attempts together have used up activeDeadlineSeconds."""
    limit = this.job.spec.active_deadline_seconds
    if not limit or not record.started:
        return False
    earlier = timedelta(seconds=this.state.spent.active_seconds)
    return earlier + (this.now - record.started) > timedelta(seconds=limit)
