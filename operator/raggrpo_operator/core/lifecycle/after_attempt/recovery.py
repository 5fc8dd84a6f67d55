"""Settle the end of an attempt: complete, restart or fail the job. Pure."""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta

from raggrpo_api.fields.text import lines, one_line
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.spec.recovery import OnOutOfMemory, RecoverySpec
from raggrpo_api.status.cause import WRITE_FAILURES, Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.restart_state import Remedies
from raggrpo_api.trainer.config import content_hash
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_operator.core.lifecycle.actions import StopAgent, StopRetrievers
from raggrpo_operator.core.lifecycle.deadlines import outages
from raggrpo_operator.core.lifecycle.during_attempt import learning, trends
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.lifecycle.warnings import update_interval_warning
from raggrpo_operator.core.spec.mitigations import Mitigation, next_mitigation
from raggrpo_operator.core.state.conditions import not_learning_reason
from raggrpo_operator.core.state.training_time import retained_seconds, with_ratios

from .node_exclusion import avoided_nodes, with_decayed_counts, with_node_failure
from .policies import POLICIES, Restart
from .repeated_failures import has_repeated_too_often, repetition_remark, repetitions, skips_step

WARM_FAILURES_BEFORE_NEW_CLUSTER = 2
"""Consecutive failures on a warm cluster after which the next attempt gets a new cluster."""
OUT_OF_MEMORY = frozenset({Cause.CUDA_OUT_OF_MEMORY, Cause.HOST_OUT_OF_MEMORY})
MAX_UNMITIGATED = 3
"""Out-of-memory attempts at the same step after which a job fails if no mitigation remains."""
MAX_RETRY_LENGTH = 64
"""Maximum characters of the retry annotation's value in the status."""
MAX_SKIPPED = 64
"""Maximum number of skipped steps, and of rejected checkpoints, in the status."""
JITTER = 0.1
"""Relative jitter of the delay before a restart, so that jobs do not restart simultaneously."""


def settle(this: Round, cause: Cause, message: str, short_of: Shortage | None = None) -> Decision:
    """Record the cause of the newest attempt's end, then complete, restart or fail the job."""
    if cause is Cause.SUCCEEDED and (why := learning.failure(this.status, this.spec)):
        cause, message = Cause.NOT_LEARNING, why
    this.status = _with_end(this.status, cause, message, this.now)
    outages.clear_waiting(this, ConditionReason.ATTEMPT_ENDED)
    this.set_conditions(trends.end_changes(this.status))
    if cause in WRITE_FAILURES:
        this.set_condition(ConditionType.CHECKPOINT_HEALTHY, False, cause, message)
    record = this.record
    if cause is Cause.SUCCEEDED and record.to_step >= this.spec.training.total_steps:
        return _complete(this, message)
    if cause is Cause.SUCCEEDED and _has_progressed(this.status):
        # The attempt reached the target it started with, but the user has raised the target since.
        due = this.now + timedelta(seconds=this.spec.recovery.backoff_seconds)
        this.store(replace(this.state.retry, next_retry_time=due))
        this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.TARGET_RAISED, message)
        return this.decision(requeue_after=0.0)
    if cause is Cause.SUCCEEDED:  # the image is user-controlled and may report a false target
        return settle(this, Cause.FALSE_SUCCESS, message)
    if cause is Cause.SUSPENDED:
        this.store(replace(this.state.retry, intent=None))
        this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.SUSPENDED)
        return this.decision(requeue_after=0.0)
    has_progressed = _has_progressed(this.status)
    _count_end(this, cause, has_progressed)
    times = repetitions(record, this.status.attempts[1:])
    newly_avoided = _count_node_failure(this, cause)
    message += repetition_remark(record, times) + newly_avoided
    recovery = this.spec.recovery
    since = this.status.restarts.since_progress
    if cause in OUT_OF_MEMORY and recovery.on_out_of_memory is OnOutOfMemory.FAIL:
        return fail(this, cause, message)
    if POLICIES[cause].restart is Restart.NEVER or has_repeated_too_often(cause, times):
        return fail(this, cause, message)
    mitigation = next_mitigation(cause, this.state.remedies.mitigations, this.spec, short_of)
    if cause in OUT_OF_MEMORY and mitigation is None and times >= MAX_UNMITIGATED:
        return fail(this, cause, f"{message}; no mitigation is left")
    if since > recovery.max_restarts:
        text = f"{since - 1} restarts without a new checkpoint; last cause {cause}: {message}"
        return fail(this, Cause.RESTART_BUDGET_EXHAUSTED, text)
    if skips_step(cause, times):
        step = record.to_step + 1
        this.store(_with_skipped_step(this.state.remedies, step, this.status.checkpoint))
    _plan_restart(this, cause, has_progressed, mitigation, avoids_node=bool(newly_avoided))
    update_interval_warning(this)
    if cause is Cause.PREEMPTED and this.observed.is_queued:
        # The next attempt gets new pods: ignore the losses of the preempted pods.
        this.store(replace(this.state.launch, cluster_since=this.now))
    this.set_condition(
        ConditionType.PROGRESSING, False, ConditionReason.RESTARTING, f"{cause}: {message}"
    )
    return this.decision(requeue_after=0.0)


def fail(this: Round, cause: Cause, message: str) -> Decision:
    """Fail the job, and record the current retry annotation so that it does not reopen the job."""
    outages.clear_waiting(this, ConditionReason.FAILED)
    this.set_condition(ConditionType.FAILED, True, cause, message)
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.FAILED)
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.FAILED)
    this.status = replace(this.status, completion_time=this.now, retry=requested_retry(this.job))
    return this.decision(requeue_after=0.0)


def requested_retry(job: RagGrpoJob) -> str:
    """Return the value of the retry annotation, or its hash if the status cannot hold the value."""
    value = job.metadata.annotations.get(ANNOTATION_RETRY, "")
    return value if value == one_line(value, MAX_RETRY_LENGTH) else content_hash(value)


def needs_new_cluster(status: JobStatus) -> bool:
    """Return whether the end of the newest attempt requires a new cluster for the next attempt."""
    if not status.attempts or status.attempts[0].cause is None:
        return False
    if POLICIES[status.attempts[0].cause].restart is Restart.NEW:
        return True
    return status.restart_state.retry.warm_failures_in_a_row >= WARM_FAILURES_BEFORE_NEW_CLUSTER


def _with_end(status: JobStatus, cause: Cause, message: str, now: datetime) -> JobStatus:
    """Return the status with the newest attempt's end recorded and its duration counted."""
    record, *older = status.attempts
    state, started = status.restart_state, record.started
    seconds = max(0, round((now - started).total_seconds())) if started is not None else 0
    saved = status.checkpoint.step if status.checkpoint else 0
    lost = 0 if cause is Cause.SUCCEEDED else max(0, record.to_step - saved)
    record = replace(
        record, cause=cause, message=lines(message, 1024), seconds=seconds, lost_steps=lost
    )
    retained = state.spent.kept_seconds + retained_seconds(record, status.progress.seconds_per_step)
    active = state.spent.active_seconds + seconds
    waited = state.spent.waiting_seconds + min(seconds, record.waiting_seconds)
    spent = replace(
        state.spent,
        active_seconds=active,
        waiting_seconds=waited,
        kept_seconds=round(retained, 1),
    )
    status = replace(
        status,
        attempts=[record, *older],
        restarts=replace(status.restarts, lost_steps=status.restarts.lost_steps + lost),
        restart_state=state.with_group(spent),
    )
    return with_ratios(status, now)


def _complete(this: Round, message: str) -> Decision:
    if reason := not_learning_reason(this.status):
        message = f"{message}; NotLearning ({reason})"
    this.set_condition(ConditionType.COMPLETE, True, ConditionReason.TARGET_REACHED, message)
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.COMPLETE)
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.COMPLETE)
    this.status = replace(this.status, completion_time=this.now)
    if this.observed.retrievers:
        this.actions.append(StopRetrievers())
    if this.observed.agent is not None:
        this.actions.append(StopAgent())
    return this.decision(requeue_after=0.0)


def _has_progressed(status: JobStatus) -> bool:
    """Return whether the newest attempt saved a checkpoint at a later step than older attempts.

    Saving a replacement for a damaged checkpoint is not progress.
    """
    first_step, saved = status.attempts[0].from_step, status.restart_state.retry.saved_step
    if first_step is None or status.checkpoint is None:
        return False
    return status.checkpoint.step > max(first_step, saved)


def _has_new_steps(status: JobStatus) -> bool:
    """Return whether the newest attempt reached a later step, saved or not, than older attempts."""
    newest, *older = status.attempts
    return newest.to_step > max((each.to_step for each in older), default=0)


def _count_end(this: Round, cause: Cause, has_progressed: bool) -> None:
    """Count the attempt's end by its cause; reset the restart budget if the attempt progressed."""
    restarts = this.status.restarts
    since = 0 if has_progressed else restarts.since_progress
    restarts = replace(
        restarts,
        since_progress=since + (1 if POLICIES[cause].is_counted else 0),
        by_cause={**restarts.by_cause, str(cause): restarts.by_cause.get(str(cause), 0) + 1},
    )
    this.status = replace(this.status, restarts=restarts)
    if has_progressed and this.status.checkpoint is not None:
        this.store(replace(this.state.retry, saved_step=this.status.checkpoint.step))


def _plan_restart(
    this: Round,
    cause: Cause,
    has_progressed: bool,
    mitigation: Mitigation | None,
    *,
    avoids_node: bool,
) -> None:
    """Schedule the next attempt, add its mitigation, and update the count of warm failures.

    If a node is to be avoided, the next attempt gets a new cluster, because the node affinity of
    running pods cannot change.
    """
    retry, remedies, recovery = this.state.retry, this.state.remedies, this.spec.recovery
    policy = POLICIES[cause]
    warm = policy.restart is Restart.WARM and policy.is_counted and policy.may_be_cluster_fault
    has_new_steps = has_progressed or _has_new_steps(this.status)  # shows that the cluster works
    in_a_row = 0 if has_new_steps or not warm else retry.warm_failures_in_a_row
    if avoids_node:
        in_a_row = WARM_FAILURES_BEFORE_NEW_CLUSTER
    ends = 1 if has_progressed else retry.ends_in_a_row + 1
    key = f"{this.job.metadata.uid}/{this.status.attempt}"
    delay = backoff(ends, recovery.backoff_seconds, recovery.max_backoff_seconds, key)
    retry = replace(
        retry,
        intent=None,
        next_retry_time=this.now + timedelta(seconds=delay) if delay else None,
        ends_in_a_row=ends,
        warm_failures_in_a_row=in_a_row + (1 if warm else 0),
    )
    this.store(retry)
    if mitigation is not None:
        this.store(replace(remedies, mitigations=[*remedies.mitigations, str(mitigation)]))
    restarts = replace(this.status.restarts, total=this.status.restarts.total + 1)
    this.status = replace(this.status, restarts=restarts)


def _count_node_failure(this: Round, cause: Cause) -> str:
    """Count a failure attributed to a node; return a remark if pods avoid the node from now on."""
    recovery = this.spec.recovery
    every = this.spec.checkpoint.every_steps
    before = with_decayed_counts(this.status, every, this.now)
    remedies = with_node_failure(this.status, this.observed.cluster, cause, every, this.now)
    if remedies == this.state.remedies:  # the failure is not attributed to a node
        return ""
    this.store(remedies)
    avoided = set(avoided_nodes(remedies, recovery)) - set(avoided_nodes(before, recovery))
    return "".join(
        f"; {remedies.failures_by_node[node]} failures are attributed to node {node}, which is "
        "avoided while other nodes fit"
        for node in sorted(avoided)
    )


def _with_skipped_step(remedies: Remedies, step: int, newest: CheckpointRef | None) -> Remedies:
    """Return the remedies with this step's prompts skipped and the newest checkpoint rejected.

    The checkpoint is rejected because it may already contain non-finite weights.
    """
    rejected = [*remedies.rejected_checkpoints, *([newest.path] if newest is not None else [])]
    return replace(
        remedies,
        skipped_steps=[*remedies.skipped_steps, step][-MAX_SKIPPED:],
        rejected_checkpoints=rejected[-MAX_SKIPPED:],
    )


def max_delay(recovery: RecoverySpec) -> float:
    """Return an upper bound, in seconds, of the delay that `backoff` returns."""
    return recovery.max_backoff_seconds * (1 + JITTER) + 1


def backoff(failures: int, first: int, largest: int, key: str) -> float:
    """Return the delay in seconds before the next attempt.

    The delay is 0 after the first failure since progress, then doubles with each failure from
    `first` up to `largest`. Its jitter is derived from `key`, so a repeated round returns the same
    delay.
    """
    if failures <= 1:
        return 0.0
    delay = min(float(largest), first * 2.0 ** (failures - 2))
    jitter = int.from_bytes(hashlib.sha256(key.encode()).digest()[:2], "big") / 65535
    return delay * (1 + JITTER * (2 * jitter - 1))
