"""Follow a running attempt: let it continue, or stop it with a recorded cause. Pure."""

from dataclasses import replace

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.core.lifecycle.actions import DeleteCluster, DumpStacks, StopAttempt
from raggrpo_operator.core.lifecycle.deadlines import active_deadline, outages, watchdog
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.sizing.grace import grace_seconds
from raggrpo_operator.core.state.conditions import STARTING_STAGES, get_condition, is_true

from . import learning, trends

FOLLOW_SECONDS = 1.0
"""Seconds between two reads of /progress."""
STOP_SECONDS = 60.0
"""Seconds beyond the driver's grace period after which the Ray cluster is deleted."""
MISSING_KEY_SECONDS = 300.0
"""Seconds to wait for a missing installation key before the cluster is replaced."""


def follow(this: Round, progress: Progress | None) -> Decision:
    """Let an attempt continue, record why to stop it, or stop it."""
    if this.state.retry.intent is not None:  # an earlier round recorded the intent
        if this.observed.is_queued:  # the preStop hooks of the pods make the driver save
            return this.decision(FOLLOW_SECONDS)
        return _stop(this)
    if this.spec.suspend:
        return _record_intent(this, Cause.SUSPENDED, this.suspend_message)
    limit = this.spec.active_deadline_seconds
    if timeout := active_deadline.timeout_message(limit, this.state.spent, this.now):
        return _record_intent(this, Cause.DEADLINE_EXCEEDED, timeout)
    if this.observed.is_queued:  # record now: the queue may resume the cluster before its pods exit
        return _record_intent(this, Cause.PREEMPTED, "the driver saves and exits")
    if progress is None:
        return _wait_for_progress(this)
    has_resumed = this.record.from_step is not None
    if has_resumed and not is_true(this.status, ConditionType.RESUME_VERIFIED):
        message = "the attempt did not resume from the newest checkpoint"
        return _record_intent(this, Cause.RESUME_MISMATCH, message)
    this.store(watchdog.advance_timer(this.state.watch, progress, this.now))
    if progress.stage is Stage.WAITING_FOR_ENDPOINT:
        return _wait_for_endpoint(this, progress)
    outages.clear_waiting(this, ConditionReason.ENDPOINT_RECOVERED)
    deadlines = this.spec.recovery.deadlines
    stall = watchdog.timeout_message(this.state.watch, progress, deadlines, this.now)
    if stall is not None:
        this.set_condition(ConditionType.STALLED, True, ConditionReason.STALLED, stall)
        this.actions.append(DumpStacks(this.record.number))
        return _record_intent(this, Cause.STALLED, stall)
    this.set_condition(ConditionType.STALLED, False, ConditionReason.MAKING_PROGRESS)
    if trends.is_baseline_due(this.state.baseline, progress):
        this.state = replace(this.state, baseline=trends.baseline_of(progress))
    this.set_conditions(trends.trend_changes(this.status, progress))
    this.set_conditions(trends.mismatch_change(this.status, progress))
    if this.spec.recovery.restart_when_degraded and (why := trends.degradation(this.status)):
        return _record_intent(this, Cause.DEGRADED, why)
    if why := learning.stop_reason(this.status, progress, this.spec):
        return _record_intent(this, Cause.NOT_LEARNING, why)
    is_starting = progress.stage in STARTING_STAGES
    reason = ConditionReason.STARTING if is_starting else ConditionReason.TRAINING
    this.set_condition(ConditionType.PROGRESSING, True, reason, f"attempt {this.record.number}")
    return this.decision(FOLLOW_SECONDS)


def stop_message(status: JobStatus, cause: Cause) -> str:
    """Return the message recorded with the intent to stop the attempt for `cause`, else ""."""
    progressing = get_condition(status, ConditionType.PROGRESSING)
    is_intent = status.restart_state.retry.intent is cause and progressing.reason == cause
    return progressing.message if is_intent else ""


def _wait_for_endpoint(this: Round, progress: Progress) -> Decision:
    """Let an attempt wait for an unavailable service, for at most outageSeconds."""
    services = outages.describe(progress.waiting_for)
    limit = this.spec.recovery.deadlines.outage_seconds
    if (timeout := outages.timeout_message(this.state.watch, limit, this.now)) is not None:
        return _record_intent(this, Cause.ENDPOINT_DOWN, f"{timeout}: {services}")
    outages.set_waiting(this, services)
    this.set_condition(ConditionType.STALLED, False, ConditionReason.MAKING_PROGRESS)
    attempt = f"attempt {this.record.number}"
    this.set_condition(
        ConditionType.PROGRESSING, True, ConditionReason.WAITING_FOR_ENDPOINT, attempt
    )
    return this.decision(FOLLOW_SECONDS)


def _wait_for_progress(this: Round) -> Decision:
    """Wait until /progress can be read, for at most progressUnreachableSeconds."""
    since = this.state.watch.unread_since or this.now
    this.store(replace(this.state.watch, unread_since=since))
    limit = this.spec.recovery.deadlines.progress_unreachable_seconds
    if this.observed.missing_key:
        return _wait_for_key(this, min(limit, MISSING_KEY_SECONDS))
    if this.elapsed(since) > limit:
        message = (
            f"/progress could not be read for {limit} s; "
            "to wait longer, increase recovery.deadlines.progressUnreachableSeconds"
        )
        return _record_intent(this, Cause.PROGRESS_UNREACHABLE, message)
    return this.decision(FOLLOW_SECONDS)


def _wait_for_key(this: Round, limit: float) -> Decision:
    """Wait for the key of the head's token, at least until a new cluster can be created."""
    is_waiting = this.elapsed(this.state.watch.unread_since) <= limit
    if is_waiting or not this.observed.can_replace_cluster:
        return this.decision(FOLLOW_SECONDS)
    message = f"{this.observed.missing_key}; the Ray cluster is replaced after {limit:g} s"
    return _record_intent(this, Cause.PROGRESS_UNREACHABLE, message)


def _record_intent(this: Round, cause: Cause, message: str) -> Decision:
    """Record the cause for which the next round stops the attempt."""
    this.store(replace(this.state.retry, intent=cause))
    this.set_condition(ConditionType.PROGRESSING, False, cause, message)
    return this.decision(requeue_after=0.0)


def _stop(this: Round) -> Decision:
    """Stop the attempt, or delete its cluster if the driver cannot be stopped in time.

    The preStop hook of the deleted head lets the driver save.
    """
    limit = grace_seconds(this.spec, this.status) + STOP_SECONDS
    since = get_condition(this.status, ConditionType.PROGRESSING).last_transition_time
    is_stuck = this.elapsed(since) > limit or bool(this.observed.missing_key)
    record = this.record
    this.actions.append(DeleteCluster(record.cluster) if is_stuck else StopAttempt(record.number))
    return this.decision(FOLLOW_SECONDS)
