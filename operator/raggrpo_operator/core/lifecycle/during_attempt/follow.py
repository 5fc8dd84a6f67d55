"""Following a running attempt: its progress into status, its resume verified, hangs found."""

from collections.abc import Sequence
from dataclasses import replace

from raggrpo_api.fields.text import one_line
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, Pinned, ProgressStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.progress import CheckpointRef, Progress, SkippedCheckpoint, Stage
from raggrpo_operator.core.lifecycle.actions import DeleteCluster, DumpStacks, StopAttempt
from raggrpo_operator.core.lifecycle.deadlines import active_deadline, outages
from raggrpo_operator.core.lifecycle.deadlines.watchdog import overdue, watch
from raggrpo_operator.core.lifecycle.observed import AttemptObserved
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.sizing.grace import grace_seconds
from raggrpo_operator.core.state.conditions import STARTING, get_condition, is_true
from raggrpo_operator.core.state.training_time import (
    downtime_seconds,
    retained_seconds,
    with_ratios,
)

from .trends import degradation, note_mismatch, note_trends

FOLLOW_SECONDS = 1.0
STOP_SECONDS = 60.0
"""How long beyond its grace period a driver may take to end."""


def update_progress(
    this: Round, attempt: AttemptObserved | None, progress: Progress | None
) -> None:
    """Update status and record from the progress that was read."""
    if this.record.started is None and attempt is not None:
        this.record = replace(this.record, started=this.now)
        spent, down = this.state.spent, downtime_seconds(this.status, this.now)
        this.store(replace(spent, down_seconds=spent.down_seconds + down))
    if progress is None:
        return
    began = progress.started_from_step
    was_verified = this.record.from_step is not None
    if began is not None and not was_verified:
        this.status = _with_loss_corrected(this.status, began)
    this.record = replace(
        this.record,
        from_step=this.record.from_step if began is None else began,
        to_step=progress.step,
        skipped_checkpoints=_described(progress.skipped_checkpoints)[:16],
        in_place=progress.in_place,
        waiting_seconds=round(progress.waited_seconds),
    )
    if progress.save_seconds > this.state.slowest_save_seconds:
        this.state = replace(this.state, slowest_save_seconds=round(progress.save_seconds, 1))
    _verify_resume(this, progress, was_verified=was_verified)
    has_moved = progress.step != this.status.progress.step
    this.status = replace(
        this.status,
        progress=_progress_status(
            progress, this.spec.training.total_steps, this.status.progress.seconds_per_step
        ),
        pinned=_with_choices(this.status.pinned, progress),
    )
    if has_moved:
        this.status = with_ratios(this.status, this.now)
    if progress.checkpoint is not None and is_true(this.status, ConditionType.RESUME_VERIFIED):
        # Before that, the attempt would be verified against its own checkpoint.
        this.status = replace(
            this.status,
            checkpoint=progress.checkpoint,
            best_step=progress.best_step,
            best_score=progress.best_score,
        )
        _report_checkpoint(this, progress.checkpoint, progress.backup_failure)


def _with_choices(pinned: Pinned, progress: Progress) -> Pinned:
    """Return the pins with what the attempt chose for Auto; the first choice is kept."""
    chosen = progress.pinned
    return replace(
        pinned,
        precision=pinned.precision or chosen.get("precision", ""),
        attention=pinned.attention or chosen.get("attention", ""),
    )


def _with_loss_corrected(status: JobStatus, resumed_at: int) -> JobStatus:
    """Recount the previous attempt's lost steps, now that it is known where this one resumed.

    Its ranks may have held a later step than was saved, it may have saved after its progress was
    last read, or its newest checkpoint is damaged.
    """
    if len(status.attempts) < 2:
        return status
    record, before, *older = status.attempts
    corrected = replace(before, lost_steps=max(0, before.to_step - resumed_at))
    state, each = status.restart_state, status.progress.seconds_per_step
    kept = retained_seconds(corrected, each) - retained_seconds(before, each)
    spent = replace(state.spent, kept_seconds=round(state.spent.kept_seconds + kept, 1))
    total = status.restarts.lost_steps + corrected.lost_steps - before.lost_steps
    return replace(
        status,
        attempts=[record, corrected, *older],
        restarts=replace(status.restarts, lost_steps=total),
        restart_state=state.with_group(spent),
    )


def _report_checkpoint(this: Round, newest: CheckpointRef, backup_failure: str) -> None:
    """Report the newest checkpoint; a failed backup is shown but never ends the attempt."""
    reason = ConditionReason.BACKUP_FAILED if backup_failure else ConditionReason.SAVED
    message = f"step {newest.step}{f'; {backup_failure}' if backup_failure else ''}"
    this.set_condition(ConditionType.CHECKPOINT_HEALTHY, not backup_failure, reason, message)


def follow(this: Round, progress: Progress | None) -> Decision:
    """Decide about an attempt that has not ended: let it run, or stop it with a recorded cause."""
    recovery, is_queued = this.spec.recovery, this.observed.is_queued
    if this.state.retry.intent is not None:  # recorded in an earlier round: carry it out
        if is_queued:  # the queue ends the pods, whose hooks make the driver save
            return this.decision(FOLLOW_SECONDS)
        return _stop(this)
    if this.spec.suspend:
        return _intend(this, Cause.SUSPENDED, "spec.suspend is true")
    if over := active_deadline.exceeded(this):
        return _intend(this, Cause.DEADLINE_EXCEEDED, over)
    if is_queued:  # recorded now: its pods may outlive the suspension
        return _intend(this, Cause.PREEMPTED, "saves and ends")
    if progress is None:
        return _unreachable(this)
    has_resumed = this.record.from_step is not None
    if has_resumed and not is_true(this.status, ConditionType.RESUME_VERIFIED):
        return _intend(this, Cause.RESUME_MISMATCH, "the attempt did not resume where it should")
    this.store(watch(this.state.watch, progress, this.now))
    if progress.stage is Stage.WAITING_FOR_ENDPOINT:
        return _await_endpoint(this, progress)
    outages.over(this, ConditionReason.ENDPOINT_RECOVERED)
    late = overdue(this.state.watch, progress, recovery.deadlines, this.now)
    if late is not None:
        this.set_condition(ConditionType.STALLED, True, ConditionReason.STALLED, late)
        this.actions.append(DumpStacks(this.record.number))
        return _intend(this, Cause.STALLED, late)
    this.set_condition(ConditionType.STALLED, False, ConditionReason.MAKING_PROGRESS)
    note_trends(this, progress)
    note_mismatch(this, progress)
    if recovery.restart_when_degraded and (why := degradation(this.status)):
        return _intend(this, Cause.DEGRADED, why)
    is_starting = progress.stage in STARTING
    stage = ConditionReason.STARTING if is_starting else ConditionReason.TRAINING
    this.set_condition(ConditionType.PROGRESSING, True, stage, f"attempt {this.record.number}")
    return this.decision(FOLLOW_SECONDS)


def _await_endpoint(this: Round, progress: Progress) -> Decision:
    """Let an attempt wait for a service that is down, within the deadline for outages."""
    told = outages.told(progress.waiting_for)
    if (late := outages.overdue(this)) is not None:
        return _intend(this, Cause.ENDPOINT_DOWN, f"{late}: {told}")
    outages.waiting(this, told)
    this.set_condition(ConditionType.STALLED, False, ConditionReason.MAKING_PROGRESS)
    attempt = f"attempt {this.record.number}"
    this.set_condition(
        ConditionType.PROGRESSING, True, ConditionReason.WAITING_FOR_ENDPOINT, attempt
    )
    return this.decision(FOLLOW_SECONDS)


def _stop(this: Round) -> Decision:
    """Stop the attempt; if the driver survives SIGKILL, delete its cluster."""
    limit = grace_seconds(this.spec, this.status) + STOP_SECONDS
    asked = get_condition(this.status, ConditionType.PROGRESSING).last_transition_time
    is_stuck, record = this.elapsed(asked) > limit, this.record
    this.actions.append(DeleteCluster(record.cluster) if is_stuck else StopAttempt(record.number))
    return this.decision(FOLLOW_SECONDS)


def _intend(this: Round, cause: Cause, message: str) -> Decision:
    """Record why the attempt will be stopped; the next round stops it."""
    this.store(replace(this.state.retry, intent=cause))
    this.set_condition(ConditionType.PROGRESSING, False, cause, message)
    return this.decision(requeue_after=0.0)


def stop_message(status: JobStatus, cause: Cause) -> str:
    """Return the message recorded when the attempt was stopped for this cause, else ""."""
    progressing = get_condition(status, ConditionType.PROGRESSING)
    is_why = status.restart_state.retry.intent is cause and progressing.reason == cause
    return progressing.message if is_why else ""


def _unreachable(this: Round) -> Decision:
    """Apply the long deadline for an unreadable /progress; a single failed read is ignored."""
    since = this.state.watch.unread_since or this.now
    this.store(replace(this.state.watch, unread_since=since))
    limit = this.spec.recovery.deadlines.progress_unreachable_seconds
    if this.elapsed(since) > limit:
        return _intend(this, Cause.PROGRESS_UNREACHABLE, f"no /progress for {limit} s")
    return this.decision(FOLLOW_SECONDS)


def _verify_resume(this: Round, progress: Progress, *, was_verified: bool) -> None:
    """Compare the step an attempt started from with the newest checkpoint observed before it."""
    started = progress.started_from_step
    if started is None:
        this.set_condition(ConditionType.RESUME_VERIFIED, None, ConditionReason.NOT_YET_REPORTED)
        return
    verified = get_condition(this.status, ConditionType.RESUME_VERIFIED)
    if verified.status != "Unknown" and was_verified:
        return
    expected = this.status.checkpoint.step if this.status.checkpoint else 0
    skipped = "; ".join(_described(progress.skipped_checkpoints))
    message = f"attempt {this.record.number}: began after step {started}"
    if started >= expected:
        this.set_condition(ConditionType.RESUME_VERIFIED, True, ConditionReason.VERIFIED, message)
    elif skipped:
        message += f" instead of {expected}, skipped {skipped}"
        this.set_condition(
            ConditionType.RESUME_VERIFIED, True, ConditionReason.OLDER_CHECKPOINT, message
        )
    else:
        message += f", expected at least {expected}"
        this.set_condition(
            ConditionType.RESUME_VERIFIED, False, ConditionReason.RESUME_MISMATCH, message
        )


def _described(skipped: Sequence[SkippedCheckpoint]) -> list[str]:
    return [one_line(f"{each.path}: {each.reason}", 256) for each in skipped]


def _progress_status(progress: Progress, total_steps: int, known: float) -> ProgressStatus:
    """Return what status shows; until an attempt's first step, a step takes what was `known`."""
    total = progress.total_steps or total_steps
    seconds_per_step = round(progress.seconds_per_step, 3) or known
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
        seconds_per_step=seconds_per_step,
        metrics=progress.metrics,
        last_updated_time=progress.time,
    )
