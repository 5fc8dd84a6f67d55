"""The end of an attempt, settled: success, another attempt after a delay, or failure for good."""

import hashlib
from dataclasses import replace
from datetime import timedelta

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.preflight import Check, CheckId, CheckState, PreflightResult
from raggrpo_api.spec.recovery import OnOutOfMemory, RecoverySpec
from raggrpo_api.status import AttemptRecord, Cause, ConditionType, JobStatus, PreflightStatus
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.mitigations import next_mitigation
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Severity
from raggrpo_operator.core.state.training_time import effective_ratio, seconds_kept

from .actions import DeletePreflight, StopRetrievers
from .bad_nodes import avoided_nodes, with_failure
from .failures import CAUSE_OF_EXIT, POLICIES, Restart
from .queueing import is_queued
from .repeated import is_hopeless, leaves_out_step, times_there, told
from .round import Decision, Round

WARM_FAILURES_BEFORE_NEW_CLUSTER = 2
OUT_OF_MEMORY = frozenset({Cause.CUDA_OUT_OF_MEMORY, Cause.HOST_OUT_OF_MEMORY})
MOST_LEFT_OUT = 64
"""As many steps and checkpoints as status can hold."""
JITTER = 0.1
"""Share by which a delay may be longer or shorter, so that jobs do not restart in step."""


def settle(this: Round, record: AttemptRecord, cause: Cause, message: str) -> Decision:
    """Record why the attempt ended and decide what follows."""
    record = _close(this, record, cause, message)
    if cause is Cause.SUCCEEDED and record.to_step >= this.total_steps:
        return _complete(this, message)
    if cause is Cause.SUCCEEDED:  # of the target it was given, which has been raised since
        this.condition(ConditionType.PROGRESSING, False, "TargetRaised", message)
        return this.end(requeue_after=0.0)
    if cause is Cause.SUSPENDED:
        this.intend(None)
        this.condition(ConditionType.PROGRESSING, False, "Suspended")
        return this.end(requeue_after=0.0)
    progressed = _has_progressed(this.status, record)
    policy = POLICIES[cause]
    counted = 1 if policy.is_counted else 0
    restarts = this.status.restarts
    since = (0 if progressed else restarts.since_progress) + counted
    by_cause = {**restarts.by_cause, str(cause): restarts.by_cause.get(str(cause), 0) + 1}
    restarts = replace(restarts, since_progress=since, by_cause=by_cause)
    this.status = replace(this.status, restarts=restarts)
    if progressed and this.status.checkpoint is not None:
        retry = replace(this.state.retry, saved_step=this.status.checkpoint.step)
        this.state = replace(this.state, retry=retry)
    times = times_there(record, this.status.attempts[1:])
    message += told(record, times) + _blame_node(this, cause)
    recovery = this.resolved.spec.recovery
    if cause in OUT_OF_MEMORY and recovery.on_out_of_memory is OnOutOfMemory.FAIL:
        return fail(this, cause, message)
    if policy.restart is Restart.NEVER or is_hopeless(cause, times):
        return fail(this, cause, message)
    if since > recovery.max_restarts:
        text = f"{since - 1} restarts without a new checkpoint, last {cause}: {message}"
        return fail(this, Cause.RESTART_BUDGET_EXHAUSTED, text)
    if leaves_out_step(cause, times):
        _leave_out(this, record.to_step + 1)
    _plan_restart(this, cause, progressed)
    if cause is Cause.PREEMPTED and is_queued(this):
        # The pods that the queue took are no loss of the next attempt, which waits for others.
        this.restart_provisioning()
    this.condition(ConditionType.PROGRESSING, False, "Restarting", f"{cause}: {message}")
    return this.end(requeue_after=0.0)


def fail(this: Round, cause: Cause, message: str) -> Decision:
    """End the job as failed; the annotation it carries now will not reopen it."""
    this.condition(ConditionType.FAILED, True, str(cause), message)
    this.condition(ConditionType.PROGRESSING, False, "Failed")
    this.condition(ConditionType.CLUSTER_READY, False, "Failed")
    retry = this.job.metadata.annotations.get(ANNOTATION_RETRY, "")
    this.status = replace(this.status, completion_time=this.now, retry=retry)
    return this.end(requeue_after=0.0)


def needs_new_cluster(status: JobStatus) -> bool:
    """Tell whether the newest attempt's end rules out its cluster."""
    if not status.attempts or status.attempts[0].cause is None:
        return False
    if POLICIES[status.attempts[0].cause].restart is Restart.NEW:
        return True
    return status.restart_state.retry.warm_failures_in_a_row >= WARM_FAILURES_BEFORE_NEW_CLUSTER


def judge_preflight(this: Round, result: PreflightResult, wanted: str) -> Decision:
    """Turn named checks and facts into acceptance, or into a failure that names all of them."""
    resolved = resolve(this.job, result.facts)
    found = [
        v for v in violations(this.job, resolved, result.facts) if v.severity is Severity.ERROR
    ]
    state = CheckState.FAILED if found else CheckState.PASSED
    evidence = "; ".join(v.line() for v in found)[:512]
    rules = Check(id=CheckId.RULES_ON_FACTS, state=state, evidence=evidence)
    checks = [*(c for c in result.checks if c.id is not CheckId.RULES_ON_FACTS), rules]
    this.status = replace(
        this.status,
        preflight=PreflightStatus(spec_hash=wanted, checks=checks, facts=result.facts),
        sizing=size(resolved.spec, result.facts),  # shows what does not fit, too
    )
    this.note_preflight_losses(0)
    this.actions.append(DeletePreflight())
    failed = [c for c in checks if c.state is CheckState.FAILED]
    if not failed:
        this.resolved = resolved
        if this.image:
            ray_version = this.status.pinned.ray_version or result.facts.ray_version
            pinned = replace(this.status.pinned, image=this.image, ray_version=ray_version)
            this.status = replace(this.status, pinned=pinned)
        this.condition(ConditionType.PREFLIGHT_PASSED, True, "Passed")
        return this.end(requeue_after=0.0)
    message = "\n".join(
        [
            *(f"{c.id}: {c.evidence}" for c in failed if c.id is not rules.id),
            *(v.line() for v in found),
        ]
    )
    this.condition(ConditionType.PREFLIGHT_PASSED, False, str(failed[0].id), message)
    code = result.exit_code or ExitCode.PREFLIGHT_FAILED
    return fail(this, CAUSE_OF_EXIT.get(code, Cause.PREFLIGHT_FAILED), message)


def _close(this: Round, record: AttemptRecord, cause: Cause, message: str) -> AttemptRecord:
    seconds = 0
    if record.started:
        seconds = max(0, round((this.now - record.started).total_seconds()))
    saved = this.status.checkpoint.step if this.status.checkpoint else 0
    lost = 0 if cause is Cause.SUCCEEDED else max(0, record.to_step - saved)
    record = replace(record, cause=cause, message=message[:1024], seconds=seconds, lost_steps=lost)
    status, spent = this.status, this.state.spent
    kept = seconds_kept(record, status.progress.seconds_per_step)
    spent = replace(
        spent,
        active_seconds=spent.active_seconds + seconds,
        kept_seconds=round(spent.kept_seconds + kept, 1),
    )
    status = replace(
        status,
        attempts=[record, *status.attempts[1:]],
        restarts=replace(status.restarts, lost_steps=status.restarts.lost_steps + lost),
        restart_state=replace(status.restart_state, spent=spent),
    )
    ratio = effective_ratio(status, this.now)
    this.status = replace(status, effective_training_time_ratio=ratio)
    return record


def _complete(this: Round, message: str) -> Decision:
    this.condition(ConditionType.COMPLETE, True, "TargetReached", message)
    this.condition(ConditionType.PROGRESSING, False, "Complete")
    this.condition(ConditionType.CLUSTER_READY, False, "Complete")
    this.status = replace(this.status, completion_time=this.now)
    if this.observed.retrievers:
        this.actions.append(StopRetrievers())
    return this.end(requeue_after=0.0)


def _has_progressed(status: JobStatus, record: AttemptRecord) -> bool:
    """Tell whether the attempt left a checkpoint beyond all that existed before it.

    One that is torn each time and written anew each time is no progress.
    """
    if record.from_step is None or status.checkpoint is None:
        return False
    return status.checkpoint.step > max(record.from_step, status.restart_state.retry.saved_step)


def _plan_restart(this: Round, cause: Cause, progressed: bool) -> None:
    spec, retry, remedies = this.resolved.spec, this.state.retry, this.state.remedies
    warm = POLICIES[cause].restart is Restart.WARM and POLICIES[cause].is_counted
    in_a_row = 0 if progressed or not warm else retry.warm_failures_in_a_row
    mitigations = list(remedies.mitigations)
    if (found := next_mitigation(cause, mitigations, spec)) is not None:
        mitigations.append(str(found))
    ends = 1 if progressed else retry.ends_in_a_row + 1
    delay = backoff(
        ends,
        spec.recovery.backoff_seconds,
        spec.recovery.max_backoff_seconds,
        f"{this.job.metadata.uid}/{this.status.attempt}",
    )
    retry = replace(
        retry,
        intent=None,
        next_retry_time=this.now + timedelta(seconds=delay) if delay else None,
        ends_in_a_row=ends,
        warm_failures_in_a_row=in_a_row + (1 if warm else 0),
    )
    remedies = replace(remedies, mitigations=mitigations)
    this.state = replace(this.state, retry=retry, remedies=remedies)
    restarts = replace(this.status.restarts, total=this.status.restarts.total + 1)
    this.status = replace(this.status, restarts=restarts)


def _blame_node(this: Round, cause: Cause) -> str:
    """Count the node that the end is blamed on; return what to say if it is avoided from now on."""
    recovery, before = this.resolved.spec.recovery, this.state.remedies
    remedies = with_failure(before, this.observed.cluster, cause)
    this.state = replace(this.state, remedies=remedies)
    avoided = set(avoided_nodes(remedies, recovery)) - set(avoided_nodes(before, recovery))
    return "".join(
        f"; node {node} failed {remedies.failures_by_node[node]} times and is avoided from now on"
        for node in avoided
    )


def _leave_out(this: Round, step: int) -> None:
    """Let the next attempt do without this step's prompts and begin before the newest checkpoint.

    Its weights may have been broken already. What was saved before it has to exist.
    """
    remedies, newest = this.state.remedies, this.status.checkpoint
    skipped = [*remedies.skipped_steps, step][-MOST_LEFT_OUT:]
    rejected = [*remedies.rejected_checkpoints, *([newest.path] if newest else [])]
    remedies = replace(
        remedies, skipped_steps=skipped, rejected_checkpoints=rejected[-MOST_LEFT_OUT:]
    )
    this.state = replace(this.state, remedies=remedies)


def longest_delay(recovery: RecoverySpec) -> float:
    """Return the longest delay in seconds that `backoff` can give."""
    return recovery.max_backoff_seconds * (1 + JITTER) + 1


def backoff(failures: int, first: int, largest: int, key: str) -> float:
    """Return the delay in seconds before the next attempt.

    The first failure after progress restarts at once; from the second in a row the delay
    doubles. The jitter is keyed, so that a repeated round decides the same.
    """
    if failures <= 1:
        return 0.0
    delay = min(float(largest), first * 2.0 ** (failures - 2))
    jitter = int.from_bytes(hashlib.sha256(key.encode()).digest()[:2], "big") / 65535
    return delay * (1 + JITTER * (2 * jitter - 1))
