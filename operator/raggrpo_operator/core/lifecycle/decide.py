"""`decide`: the only place where the life of a job is decided. Pure; safe to call twice.

An attempt takes two rounds: the first writes its number to status, the second submits it. So
a crash between any two rounds loses nothing and starts nothing twice.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import ANNOTATION_RETRY, cluster_name
from raggrpo_api.status import (
    AttemptRecord,
    Baseline,
    Cause,
    ClusterStatus,
    ConditionType,
    RestartState,
    Tier,
)
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.grace import grace_seconds
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Severity, Violation
from raggrpo_operator.core.state.conditions import is_true

from . import following, readiness, recovery
from .actions import (
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    PodPlan,
    StopRetrievers,
    SubmitAttempt,
)
from .bad_nodes import avoided_nodes
from .failures import classify
from .observed import AttemptObserved, Observed, SubmissionStatus
from .queueing import note_queue, tier_on_same_cluster, wait_in_queue
from .round import PODS_WAITING, RELEASE_SECONDS, Decision, Round

LOST_OTHERS = frozenset(
    {ExitCode.ROLLOUT_ENGINE_LOST, ExitCode.TRAINER_RANK_LOST, ExitCode.COLLECTIVE_TIMEOUT}
)
"""Exit codes that infrastructure can be behind: its evidence wins when it comes in time."""
PROOF_SECONDS = 60.0
"""How long a driver's exit code 0 may wait for its last progress to be read."""


def decide(job: RagGrpoJob, observed: Observed, now: datetime) -> Decision:
    """Return what is to be done for this job, seen like this, at this moment."""
    if job.metadata.deletion_timestamp:  # what it owns goes with it
        return Decision(job.status)
    resolved = resolve(job, job.status.preflight.known_facts)
    status = replace(
        job.status,
        observed_generation=job.metadata.generation,
        preset=str(job.spec.preset),
        start_time=job.status.start_time or now,
    )
    this = Round(job, observed, now, status, resolved)

    if found := _errors(violations(job, resolved, None)):  # 1. a bad spec begins nothing
        return _invalid(this, found)
    this.condition(ConditionType.ACCEPTED, True, "Valid")
    if _has_ended(this):  # 2. nothing happens after the end, unless the user reopens it
        return _clean_up(this)
    is_queued = note_queue(this)
    if (record := _running(this)) is not None:  # 3. an attempt is under way
        return _attend(this, record)
    if job.spec.suspend:  # 4. nothing runs: waiting is all there is to do
        return _suspended(this)
    if not is_queued:
        this.condition(ConditionType.SUSPENDED, False, "NotSuspended")
    this.look()
    if (decision := readiness.preflight(this)) is not None:  # 5. checks and facts, before any GPU
        return decision
    if (decision := readiness.retrievers(this)) is not None:  # 6. managed retrievers
        return decision
    return _next_attempt(this)  # 7. begin


def _errors(found: Sequence[Violation]) -> list[Violation]:
    return [v for v in found if v.severity is Severity.ERROR]


def _invalid(this: Round, found: list[Violation]) -> Decision:
    lines = "\n".join(v.line() for v in found)
    this.condition(ConditionType.ACCEPTED, False, str(found[0].reason), lines)
    record = _running(this)
    if record is not None and record.started:  # it runs by the configuration it was given
        return _attend(this, record)
    if record is not None:
        message = "the spec became invalid before it was submitted"
        return recovery.settle(this, record, Cause.SUSPENDED, message)
    this.condition(ConditionType.PROGRESSING, False, "Invalid")
    this.condition(ConditionType.CLUSTER_READY, False, "Invalid")
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
    mended = (
        failed
        and status.attempt == 0
        and status.preflight.spec_hash != readiness.spec_hash(this.job)
    )
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
        preflight = replace(status.preflight, spec_hash="")
        this.status = replace(this.status, preflight=preflight)
    remedies = replace(status.restart_state.remedies, failures_by_node={})
    slowest = status.restart_state.slowest_save_seconds
    this.status = replace(
        this.status,
        restarts=replace(status.restarts, since_progress=0),
        restart_state=RestartState(remedies=remedies, slowest_save_seconds=slowest),
        retry=retry,
        completion_time=None,
    )
    return False


def _clean_up(this: Round) -> Decision:
    """Free everything after the end and stay quiet."""
    _release(this)
    return this.end(requeue_after=None if not this.actions else RELEASE_SECONDS)


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
    observed, intent = this.observed, this.state.retry.intent
    cluster = observed.cluster
    this.look()
    if cluster is not None and cluster.number < record.cluster:  # it shows up late: gone first
        this.actions.append(DeleteCluster(cluster.number))
        return this.end(RELEASE_SECONDS)
    readiness.keep_retrievers(this)
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
    elif cluster is None and not record.started and intent is None:
        if this.job.spec.suspend:
            return recovery.settle(this, record, Cause.SUSPENDED, "suspended before it began")
        return _create_cluster(this, record)
    progress = following.own_progress(this, record)
    attempt = observed.attempt
    if attempt is not None and attempt.number != record.number:
        attempt = None
    if progress is None and _awaits_proof(this, attempt):
        return this.end(requeue_after=0.5)
    if _awaits_evidence(this, attempt):
        return this.end(requeue_after=0.5)
    ended = classify(
        attempt,
        cluster if cluster is not None and cluster.number == record.cluster else None,
        progress,
        was_seen=bool(record.started) and observed.dashboard_reachable,
        intent=intent,
        total_steps=this.total_steps,
    )
    record = following.note_progress(this, record, progress)
    if ended is not None:
        message = following.why_stopped(this, ended.cause) or ended.message
        return recovery.settle(this, record, ended.cause, message)
    return following.follow(this, record, progress)


def _create_cluster(this: Round, record: AttemptRecord) -> Decision:
    spec, status = this.resolved.spec, this.status
    action = CreateCluster(
        PodPlan(spec, this.image, status.sizing),
        record.cluster,
        ray_version=status.pinned.ray_version or status.preflight.facts.ray_version,
        grace_seconds=grace_seconds(spec, status),
        avoided_nodes=avoided_nodes(status.restart_state.remedies, spec.recovery),
    )
    this.begin(action)
    return this.end(requeue_after=1.0)


def _awaits_proof(this: Round, attempt: AttemptObserved | None) -> bool:
    """Tell whether a success has to wait for its proof, since /progress cannot be read now."""
    if attempt is None or attempt.status is not SubmissionStatus.SUCCEEDED:
        return False
    this.condition(ConditionType.PROGRESSING, False, "VerifyingSuccess")
    return this.seconds_in(ConditionType.PROGRESSING) < PROOF_SECONDS


def _awaits_evidence(this: Round, attempt: AttemptObserved | None) -> bool:
    """Tell whether a driver that lost others has to wait for what their pods tell about it."""
    limit, cluster = this.observed.evidence_seconds, this.observed.cluster
    if not limit or attempt is None or attempt.exit_code not in LOST_OTHERS:
        return False
    if cluster is None or cluster.is_lost or cluster.is_queued or cluster.cause is not None:
        return False
    if this.state.retry.intent is not None:
        return False
    this.condition(ConditionType.PROGRESSING, False, "AwaitingEvidence")
    return this.seconds_in(ConditionType.PROGRESSING) < limit


def _submit(this: Round, record: AttemptRecord) -> Decision:
    if limit := _provisioning_overdue(this):
        message = f"the head accepted no submission for {limit} s"
        return recovery.settle(this, record, Cause.HEAD_LOST, message)
    config = this.attempt_config()
    this.condition(ConditionType.CLUSTER_READY, True, "Ready")
    identity = config.attempt
    this.status = replace(
        this.status, config_hash=identity.config_hash, resume_hash=identity.resume_hash
    )
    this.begin(SubmitAttempt(config, record.cluster))
    return this.end(requeue_after=0.5)


def _await_cluster(this: Round, record: AttemptRecord) -> Decision:
    """Wait for the cluster's pods or processes, within the provisioning deadline."""
    cluster = this.observed.cluster
    waiting_for = cluster.message if cluster is not None else ""
    reason = PODS_WAITING if waiting_for else "Provisioning"
    this.condition(ConditionType.CLUSTER_READY, False, reason, waiting_for)
    if this.job.spec.suspend:
        return recovery.settle(this, record, Cause.SUSPENDED, "suspended while provisioning")
    if cluster is not None and cluster.is_queued:
        return wait_in_queue(this)
    if cluster is not None and cluster.cause is not None:
        return recovery.settle(this, record, cluster.cause, cluster.message)
    if limit := _provisioning_overdue(this):
        why = waiting_for or "its pods are not ready"
        message = f"the cluster was not ready after {limit} s: {why}{_avoiding(this)}"
        return recovery.settle(this, record, Cause.UNSCHEDULABLE, message)
    return this.end(requeue_after=0.5)


def _avoiding(this: Round) -> str:
    """Return which nodes the pods may not go to, and how to allow them again."""
    nodes = avoided_nodes(this.state.remedies, this.resolved.spec.recovery)
    if not nodes:
        return ""
    failed = f"{', '.join(nodes)} failed before"
    return f"; {failed}: set spec.recovery.excludeNodeAfterFailures to 0 to use them again"


def _provisioning_overdue(this: Round) -> int:
    """Return the deadline in seconds if it has passed since the attempt was recorded, else 0."""
    since = this.state.launch.cluster_since
    limit = this.resolved.spec.recovery.deadlines.provisioning_seconds
    return limit if this.elapsed(since) > limit else 0


def _suspended(this: Round) -> Decision:
    _release(this)
    this.condition(ConditionType.SUSPENDED, True, "Suspended", "spec.suspend is true")
    this.condition(ConditionType.PROGRESSING, False, "Suspended")
    this.condition(ConditionType.CLUSTER_READY, False, "Suspended")
    return this.end(requeue_after=None if not this.actions else RELEASE_SECONDS)


def _wait(this: Round) -> float:
    """Return the seconds until the next attempt; a clock set back does not prolong them."""
    due = this.state.retry.next_retry_time
    if due is None:
        return 0.0
    wait = (due - this.now).total_seconds()
    return wait if wait <= recovery.longest_delay(this.resolved.spec.recovery) else 0.0


def _next_attempt(this: Round) -> Decision:
    """Record the next attempt; it is submitted in the next round."""
    state, status = this.state, this.status
    cluster = this.observed.cluster
    keep = cluster is not None and not cluster.is_lost and cluster.number == status.cluster.number
    keep = keep and not recovery.needs_new_cluster(status)
    if cluster is not None and not keep:  # before any delay: nobody needs what it holds
        if not cluster.may_save:
            this.actions.append(DeleteCluster(cluster.number))
        return this.end(requeue_after=0.5)
    wait = _wait(this)
    if wait > 0:
        return this.end(wait + 0.1)
    if why := this.upgrade_required():
        this.condition(ConditionType.PROGRESSING, False, "UpgradeRequired", why)
        return this.end()
    number = status.cluster.number + (0 if keep else 1)
    record = AttemptRecord(
        number=status.attempt + 1,
        tier=tier_on_same_cluster(this)
        if keep
        else Tier.NEW_CLUSTER
        if status.attempts
        else Tier.FIRST,
        cluster=number,
        mitigation=",".join(state.remedies.mitigations),
    )
    this.status = replace(
        status,
        attempt=record.number,
        attempts=[record, *status.attempts][:10],
        cluster=ClusterStatus(name=cluster_name(this.job.metadata.name, number), number=number),
        sizing=size(this.resolved.spec, status.preflight.facts),
        progress=replace(status.progress, stage=""),
    )
    warm_failures = state.retry.warm_failures_in_a_row if keep else 0
    this.state = replace(
        state,
        retry=replace(
            state.retry, intent=None, next_retry_time=None, warm_failures_in_a_row=warm_failures
        ),
        launch=replace(state.launch, cluster_since=this.now, tries=0),
        watch=replace(
            state.watch, unread_since=None, stage="", still_since=None, reads_since_step=0
        ),
        baseline=Baseline(),
    )
    record = replace(record, config_hash=this.attempt_config().attempt.config_hash)
    this.status = replace(this.status, attempts=[record, *this.status.attempts[1:]])
    this.condition(ConditionType.PROGRESSING, True, "Starting", f"attempt {record.number}")
    return this.end(requeue_after=0.0)
