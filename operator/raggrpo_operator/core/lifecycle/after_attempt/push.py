"""Push: upload the results of a complete job, which stays complete if this fails. Pure."""

from dataclasses import replace
from datetime import timedelta

from raggrpo_api.fields.base import format_time
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import EXPORT_DIR
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, PushStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.config import content_hash
from raggrpo_api.trainer.staging import (
    TRANSIENT_REASONS,
    UPLOADING,
    PushOutcome,
    progress_text,
    pushed_text,
)
from raggrpo_operator.core.lifecycle.actions import DeletePush, PodPlan, StartPush
from raggrpo_operator.core.lifecycle.observed import PushObserved
from raggrpo_operator.core.lifecycle.round import POLL_SECONDS, Decision, Round
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.sources import with_variables
from raggrpo_operator.core.state.conditions import Reason, get_condition, is_true

from .recovery import backoff, requested_retry

MAX_TRIES = 6
"""Maximum pushes of the same results, each of which repeats failed requests."""
MAX_OOM_KILLS = 4
"""Maximum pods of the same push that run out of memory; the last one has 8 times the memory."""


def is_push_due(job: RagGrpoJob, status: JobStatus) -> bool:
    """Return whether the results of a complete job have to be pushed, or are being pushed."""
    if not job.spec.output.push or job.spec.suspend or not is_true(status, ConditionType.COMPLETE):
        return False
    is_settled = get_condition(status, ConditionType.RESULT_PUSHED).status != "Unknown"
    return not (is_settled and status.push.request_hash == push_hash(job, status))


def push_hash(job: RagGrpoJob, status: JobStatus) -> str:
    """Return the hash of target and results; the push is repeated if it changes."""
    retry = requested_retry(job)
    return content_hash([job.spec.output.push, status.progress.step, retry])


def push_results(this: Round) -> Decision:
    """Start the push, follow it, and start it again after a failure."""
    expected = push_hash(this.job, this.status)
    if this.status.push.request_hash != expected:
        this.status = replace(this.status, push=PushStatus(request_hash=expected))
        _report(this, ConditionReason.PUSHING)
    due, observed = this.status.push.next_try_time, this.observed.push
    if due is not None and this.now < due:
        return this.decision((due - this.now).total_seconds() + 0.1)
    try_hash = content_hash([expected, this.status.push.failed_tries])
    if observed is None or observed.request_hash != try_hash:
        this.actions += [DeletePush()] if observed is not None else []
        plan = _plan(this)
        this.status = replace(this.status, sizing=plan.sizing)
        job = this.job.model_copy(update={"status": this.status})
        this.actions.append(StartPush(plan, job, try_hash))
        return this.decision(requeue_after=1.0)
    return _follow(this, observed)


def _plan(this: Round) -> PodPlan:
    """Return the plan of the push, without memory for an export if it does not export."""
    sizing = size(
        this.spec,
        this.status.preflight.known_facts,
        exports_best=this.status.has_earlier_best,
        push_oom_kills=this.status.push.out_of_memory_kills,
    )
    return replace(this.pod_plan(), sizing=sizing)


def _follow(this: Round, observed: PushObserved) -> Decision:
    if observed.result is not None:
        return _evaluate(this, observed.result)
    if observed.is_out_of_memory:
        return _fail_for_memory(this, observed.problem)
    if observed.problem:
        return _fail(this, ConditionReason.NO_RESULT, observed.problem, observed.cannot_start)
    limit = this.spec.recovery.deadlines.provisioning_seconds
    if observed.waiting_for and this.seconds_in(ConditionType.RESULT_PUSHED) > limit:
        message = (
            f"the push did not start within {limit} s: {observed.waiting_for}; "
            "to wait longer, increase recovery.deadlines.provisioningSeconds"
        )
        return _fail(this, observed.waiting_reason, message, is_final=True)
    if observed.waiting_for:
        _report(this, observed.waiting_reason, observed.waiting_for)
    elif observed.progress is not None:
        _report(this, ConditionReason.PUSHING, progress_text(observed.progress, UPLOADING))
    elif this.status.push.failed_tries == 0:
        _report(this, ConditionReason.PUSHING)
    return this.decision(requeue_after=POLL_SECONDS if this.observed.in_pods else 0.5)


def _evaluate(this: Round, outcome: PushOutcome) -> Decision:
    if outcome.pushed is None:
        reason = outcome.reason or ConditionReason.NO_RESULT
        message = with_variables(this.spec, reason, outcome.message)
        return _fail(this, reason, message, is_final=reason not in TRANSIENT_REASONS)
    pushed = outcome.pushed
    push = replace(
        this.status.push,
        url=pushed.url,
        revision=pushed.revision,
        bytes=pushed.bytes,
        next_try_time=None,
    )
    this.status = replace(this.status, push=push)
    this.actions.append(DeletePush())
    this.set_condition(
        ConditionType.RESULT_PUSHED, True, ConditionReason.PUSHED, pushed_text(pushed)
    )
    return this.decision(requeue_after=0.0)


def _fail_for_memory(this: Round, problem: str) -> Decision:
    """Schedule a try with twice the memory, or report how to push the results by hand."""
    kills = this.status.push.out_of_memory_kills + 1
    this.status = replace(this.status, push=replace(this.status.push, out_of_memory_kills=kills))
    if kills < MAX_OOM_KILLS:
        problem = f"{problem}; the next pod has twice the memory"
        return _fail(this, ConditionReason.NO_RESULT, problem, is_final=False)
    folder = f"{this.spec.checkpoint.path}/{EXPORT_DIR}"
    remedy = f"push {folder} with python -m raggrpo_staging.push where more memory is available"
    return _fail(this, ConditionReason.NO_RESULT, f"{problem}; {remedy}", is_final=True)


def _fail(this: Round, reason: Reason, problem: str, is_final: bool) -> Decision:
    """Schedule another try, or report the failure if another try cannot help."""
    this.actions.append(DeletePush())
    tries = this.status.push.failed_tries + 1
    push = replace(this.status.push, failed_tries=tries, next_try_time=None)
    if is_final or tries >= MAX_TRIES:
        this.status = replace(this.status, push=push)
        count = f" ({tries} tries)" if tries > 1 else ""
        this.set_condition(ConditionType.RESULT_PUSHED, False, reason, f"{problem}{count}")
        return this.decision(requeue_after=0.0)
    recovery, key = this.spec.recovery, f"{this.job.metadata.uid}/push"
    # Even the first failure is followed by a delay, because the push itself has retried.
    delay = backoff(tries + 1, recovery.backoff_seconds, recovery.max_backoff_seconds, key)
    due = this.now + timedelta(seconds=delay)
    this.status = replace(this.status, push=replace(push, next_try_time=due))
    _report(this, reason, f"{problem}; try {tries + 1} of {MAX_TRIES} at {format_time(due)}")
    return this.decision(requeue_after=delay)


def _report(this: Round, reason: Reason, message: str = "") -> None:
    this.set_condition(ConditionType.RESULT_PUSHED, None, reason, message)
