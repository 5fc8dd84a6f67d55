"""`decide`: the only place where the life of a job is decided. Pure; safe to call twice.

An attempt takes two rounds: the first writes its number to status, the second submits it. So
a crash between any two rounds loses nothing and starts nothing twice.
"""

from collections.abc import Sequence
from datetime import datetime

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import ANNOTATION_RETRY, cluster_name
from raggrpo_api.status import AttemptRecord, Cause, ConditionType, JobStatus, RestartState, Tier
from raggrpo_api.trainer_config import TrainerConfig, content_hash

from . import following, recovery
from .actions import (
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    StartPreflight,
    StartRetriever,
    StopRetrievers,
    SubmitAttempt,
)
from .conditions import get_condition, is_true, parse_timestamp, timestamp
from .failures import classify
from .observed import AttemptObserved, Observed, SubmissionStatus
from .resolve import Resolved, resolve, trainer_config
from .round import POLL_SECONDS, Decision, Round
from .rules import violations
from .sizing import size
from .violation import Severity, Violation

PROOF_SECONDS = 60.0
"""How long a driver's exit code 0 may wait for its last progress to be read (B9)."""

MAX_PREFLIGHT_LOSSES = 3
"""Preflights that may end without a result; an evicted pod is one, a broken image is all."""


def decide(job: RagGrpoJob, observed: Observed, now: datetime) -> Decision:
    """Return what is to be done for this job, seen like this, at this moment."""
    facts = job.status.preflight.facts
    resolved = resolve(job, facts if facts.parameters else None)
    status = job.status.model_copy(update={"observed_generation": job.metadata.generation})
    if not status.start_time:
        status = status.model_copy(update={"start_time": timestamp(now)})
    this = Round(job, observed, now, status, resolved)

    if found := _errors(violations(job, resolved, None)):  # 1. a bad spec takes nothing
        return _invalid(this, found)
    this.condition(ConditionType.ACCEPTED, True, "Valid")
    if _has_ended(this):  # 2. nothing happens after the end, unless the user reopens it
        return _clean_up(this)
    if (record := _running(this)) is not None:  # 3. an attempt is under way
        return _attend(this, record)
    if job.spec.suspend:  # 4. nothing runs: waiting is all there is to do
        return _suspended(this)
    this.condition(ConditionType.SUSPENDED, False, "NotSuspended")
    if (decision := _preflight(this)) is not None:  # 5. checks and facts, before any GPU
        return decision
    if (decision := _retrievers(this)) is not None:  # 6. managed retrievers
        return decision
    return _next_attempt(this)  # 7. begin


def attempt_config(job: RagGrpoJob, resolved: Resolved, status: JobStatus) -> TrainerConfig:
    """Return the configuration of the newest attempt; the same for every call with one status."""
    facts = status.preflight.facts
    return trainer_config(
        job,
        resolved,
        number=status.attempt,
        mitigations=status.restart_state.mitigations,
        pinned=status.pinned,
        facts=facts if facts.parameters else None,
    )


def _errors(found: Sequence[Violation]) -> list[Violation]:
    return [v for v in found if v.severity is Severity.ERROR]


def _invalid(this: Round, found: list[Violation]) -> Decision:
    lines = "\n".join(v.line() for v in found)
    this.condition(ConditionType.ACCEPTED, False, str(found[0].reason), lines)
    _release(this)
    return this.end(requeue_after=None)


def _has_ended(this: Round) -> bool:
    """Tell whether the job is over; reopen it when the user asked for more."""
    status = this.status
    complete = is_true(status, ConditionType.COMPLETE)
    failed = is_true(status, ConditionType.FAILED)
    if not complete and not failed:
        return False
    retry = this.job.metadata.annotations.get(ANNOTATION_RETRY, "")
    mended = failed and status.attempt == 0 and status.preflight.spec_hash != spec_hash(this.job)
    reopened = (
        (complete and this.total_steps > status.progress.total_steps)
        or (failed and retry != status.retry)
        or mended
    )
    if not reopened:
        return True
    this.condition(ConditionType.COMPLETE, False, "Reopened")
    this.condition(ConditionType.FAILED, False, "Reopened")
    if failed:
        this.condition(ConditionType.PREFLIGHT_PASSED, None, "Reopened")
        this.update(preflight=status.preflight.model_copy(update={"spec_hash": ""}))
    restarts = status.restarts.model_copy(update={"since_progress": 0})
    kept = RestartState(mitigations=status.restart_state.mitigations)
    this.update(restarts=restarts, restart_state=kept, retry=retry, completion_time="")
    return False


def _clean_up(this: Round) -> Decision:
    """Free everything after the end and stay quiet."""
    _release(this)
    return this.end(requeue_after=None if not this.actions else POLL_SECONDS)


def _release(this: Round) -> None:
    if this.observed.cluster is not None:
        this.actions.append(DeleteCluster(this.observed.cluster.number))
    if this.observed.retrievers:
        this.actions.append(StopRetrievers())
    if this.observed.preflight is not None:
        this.actions.append(DeletePreflight())


def _running(this: Round) -> AttemptRecord | None:
    """Return the record of the attempt that has not ended."""
    records = this.status.attempts
    return records[0] if records and records[0].cause is None else None


def _attend(this: Round, record: AttemptRecord) -> Decision:
    """Submit the recorded attempt, follow it, or settle its end."""
    observed, state = this.observed, this.status.restart_state
    cluster = observed.cluster
    _keep_retrievers(this)
    if cluster is not None and cluster.number == record.cluster and not cluster.is_lost:
        if not record.started and not cluster.is_ready:
            return _await_cluster(this, record)
        seen = observed.attempt is not None and observed.attempt.number == record.number
        if not record.started and not seen:
            if this.job.spec.suspend:
                return recovery.settle(
                    this, record, Cause.SUSPENDED, "suspended before it was submitted"
                )
            return _submit(this, record)
    elif cluster is None and not record.started and state.intent is None:
        this.actions.append(CreateCluster(record.cluster))
        return this.end(requeue_after=1.0)
    progress = following.own_progress(this, record)
    attempt = observed.attempt
    if attempt is not None and attempt.number != record.number:
        attempt = None
    if progress is None and _awaits_proof(this, attempt):
        return this.end(requeue_after=0.5)
    ended = classify(
        attempt,
        cluster if cluster is not None and cluster.number == record.cluster else None,
        progress,
        was_seen=bool(record.started) and observed.dashboard_reachable,
        intent=state.intent,
        total_steps=this.total_steps,
    )
    record = following.note_progress(this, record, progress)
    if ended is not None:
        return recovery.settle(this, record, ended.cause, ended.message)
    return following.follow(this, record, progress)


def _awaits_proof(this: Round, attempt: AttemptObserved | None) -> bool:
    """Tell whether a success has to wait for its proof, since /progress cannot be read now."""
    if attempt is None or attempt.status is not SubmissionStatus.SUCCEEDED:
        return False
    this.condition(ConditionType.PROGRESSING, False, "VerifyingSuccess")
    return _seconds_in(this, ConditionType.PROGRESSING) < PROOF_SECONDS


def _submit(this: Round, record: AttemptRecord) -> Decision:
    if limit := _provisioning_overdue(this):
        message = f"the head accepted no submission for {limit} s"
        return recovery.settle(this, record, Cause.HEAD_LOST, message)
    config = attempt_config(this.job, this.resolved, this.status)
    this.condition(ConditionType.CLUSTER_READY, True, "Ready")
    this.update(config_hash=config.attempt.config_hash, resume_hash=config.attempt.resume_hash)
    this.actions.append(SubmitAttempt(config, record.cluster))
    return this.end(requeue_after=0.5)


def _await_cluster(this: Round, record: AttemptRecord) -> Decision:
    """Wait for the cluster's pods or processes, within the provisioning deadline."""
    this.condition(ConditionType.CLUSTER_READY, False, "Provisioning")
    if this.job.spec.suspend:
        return recovery.settle(this, record, Cause.SUSPENDED, "suspended while provisioning")
    if limit := _provisioning_overdue(this):
        cluster = this.observed.cluster
        why = cluster.message if cluster and cluster.message else "its pods are not ready"
        message = f"the cluster was not ready after {limit} s: {why}"
        return recovery.settle(this, record, Cause.UNSCHEDULABLE, message)
    return this.end(requeue_after=0.5)


def _provisioning_overdue(this: Round) -> int:
    """Return the deadline in seconds if it has passed since the attempt was recorded, else 0."""
    since = this.status.restart_state.cluster_since
    limit = this.resolved.spec.recovery.deadlines.provisioning_seconds
    late = since and (this.now - parse_timestamp(since)).total_seconds() > limit
    return limit if late else 0


def _suspended(this: Round) -> Decision:
    _release(this)
    this.condition(ConditionType.SUSPENDED, True, "Suspended", "spec.suspend is true")
    this.condition(ConditionType.PROGRESSING, False, "Suspended")
    this.condition(ConditionType.CLUSTER_READY, False, "Suspended")
    if not is_true(this.status, ConditionType.PREFLIGHT_PASSED):
        this.condition(ConditionType.PREFLIGHT_PASSED, False, "Suspended")
    return this.end(requeue_after=None if not this.actions else POLL_SECONDS)


def spec_hash(job: RagGrpoJob) -> str:
    """Return the hash of the part of the spec that preflight judges."""
    spec = job.manifest()["spec"]
    unjudged = ("suspend", "recovery", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
    judged = {key: value for key, value in spec.items() if key not in unjudged}
    if "training" in judged:
        training = {
            k: v for k, v in judged["training"].items() if k not in ("totalSteps", "epochs")
        }
        judged["training"] = training
    return content_hash(judged)


def _preflight(this: Round) -> Decision | None:
    """Run the checks once per spec; None when they have passed."""
    wanted, seen = spec_hash(this.job), this.observed.preflight
    status = this.status
    if status.preflight.spec_hash == wanted and is_true(status, ConditionType.PREFLIGHT_PASSED):
        if seen is not None:
            this.actions.append(DeletePreflight())
        return None
    losses = status.restart_state.preflight_losses
    if seen is not None and seen.problem and losses >= MAX_PREFLIGHT_LOSSES:
        return _give_up_preflight(this, wanted, seen.problem)
    if seen is None or seen.spec_hash != wanted:
        _restart_clock(this, ConditionType.PREFLIGHT_PASSED)
    problem = seen.problem if seen is not None else ""
    this.condition(ConditionType.PREFLIGHT_PASSED, None, "Running", problem)
    limit = this.resolved.spec.recovery.deadlines.preflight_seconds
    is_late = _seconds_in(this, ConditionType.PREFLIGHT_PASSED) > limit
    if is_late and (seen is None or seen.result is None):
        message = f"the checks did not finish within {limit} s: {problem or 'no result'}"
        return _give_up_preflight(this, wanted, message)
    if seen is None or seen.spec_hash != wanted or problem:
        this.update_restart_state(preflight_losses=losses + 1 if problem else 0)
        if seen is not None:
            this.actions.append(DeletePreflight())
        config = attempt_config(this.job, this.resolved, status)
        this.actions.append(StartPreflight(config, wanted))
        return this.end(requeue_after=1.0 if seen is None else POLL_SECONDS)
    if seen.result is None:
        return this.end(requeue_after=0.5)
    return recovery.judge_preflight(this, seen.result, wanted)


def _give_up_preflight(this: Round, wanted: str, message: str) -> Decision:
    """End the job without a result, until its spec is mended or the user asks for a retry."""
    this.update(preflight=this.status.preflight.model_copy(update={"spec_hash": wanted}))
    this.update_restart_state(preflight_losses=0)
    this.condition(ConditionType.PREFLIGHT_PASSED, False, "NoResult", message)
    return recovery.fail(this, Cause.PREFLIGHT_FAILED, message)


def _retrievers(this: Round) -> Decision | None:
    """Start managed retrievers and wait for them; None when all are ready."""
    managed = _keep_retrievers(this)
    if not managed:
        return None
    seen = {r.name: r for r in this.observed.retrievers}
    waiting = [name for name in managed if name not in seen or not seen[name].is_ready]
    if not waiting:
        this.condition(ConditionType.RETRIEVER_READY, True, "Ready", ", ".join(managed))
        return None
    problems = "; ".join(f"{n}: {seen[n].problem}" for n in waiting if n in seen)
    if not seen:
        _restart_clock(this, ConditionType.RETRIEVER_READY)
    this.condition(ConditionType.RETRIEVER_READY, False, "Loading", problems)
    for retriever in this.observed.retrievers:
        if retriever.cause is not None:
            return recovery.fail(this, retriever.cause, f"{retriever.name}: {retriever.problem}")
    limit = this.resolved.spec.recovery.deadlines.provisioning_seconds
    if _seconds_in(this, ConditionType.RETRIEVER_READY) > limit:
        message = f"the managed retriever was not ready after {limit} s: {problems}"
        return recovery.fail(this, Cause.START_FAILED, message)
    return this.end(requeue_after=0.5)


def _keep_retrievers(this: Round) -> list[str]:
    """Start the managed retrievers that do not run; returns the names of all."""
    managed = [e.name for e in this.resolved.spec.retrieval.endpoints if e.managed is not None]
    alive = {r.name for r in this.observed.retrievers if not r.has_ended}
    this.actions.extend(StartRetriever(name) for name in managed if name not in alive)
    return managed


def _restart_clock(this: Round, kind: ConditionType) -> None:
    """Let a condition's transition time begin anew: what it waits for was just started."""
    ready = not is_true(this.status, kind)
    this.condition(kind, ready, "Starting")


def _seconds_in(this: Round, kind: ConditionType) -> float:
    """Return how long a condition has had its present value."""
    since = get_condition(this.status, kind).last_transition_time
    return (this.now - parse_timestamp(since)).total_seconds()


def _next_attempt(this: Round) -> Decision:
    """Record the next attempt; it is submitted in the next round."""
    state, status = this.status.restart_state, this.status
    wait = state.next_retry_time
    if wait and this.now < parse_timestamp(wait):
        return this.end((parse_timestamp(wait) - this.now).total_seconds() + 0.1)
    cluster = this.observed.cluster
    keep = cluster is not None and not cluster.is_lost and cluster.number == status.cluster.number
    keep = keep and not recovery.needs_new_cluster(status)
    if cluster is not None and not keep:
        this.actions.append(DeleteCluster(cluster.number))
        return this.end(requeue_after=0.5)
    number = status.cluster.number + (0 if keep else 1)
    tier = Tier.FIRST if not status.attempts else Tier.WARM_CLUSTER if keep else Tier.NEW_CLUSTER
    record = AttemptRecord(
        number=status.attempt + 1,
        tier=tier,
        cluster=number,
        mitigation=",".join(state.mitigations),
    )
    this.update(
        attempt=record.number,
        attempts=[record, *status.attempts][:10],
        cluster=status.cluster.model_copy(
            update={"name": cluster_name(this.job.metadata.name, number), "number": number}
        ),
        sizing=size(this.resolved.spec, status.preflight.facts),
    )
    this.update_restart_state(
        intent=None,
        next_retry_time="",
        cluster_since=timestamp(this.now),
        warm_failures_in_a_row=state.warm_failures_in_a_row if keep else 0,
        read_since="",
        stage="",
        stage_entered="",
        reads_since_step=0,
    )
    config = attempt_config(this.job, this.resolved, this.status)
    record = record.model_copy(update={"config_hash": config.attempt.config_hash})
    this.update(attempts=[record, *this.status.attempts[1:]])
    this.condition(ConditionType.PROGRESSING, True, "Starting", f"attempt {record.number}")
    return this.end(requeue_after=0.0)
