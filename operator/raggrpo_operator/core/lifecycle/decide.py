"""`decide`: the state machine of a job. Pure; safe to call twice.

Starting an attempt takes two rounds: the first writes the attempt's number to the status, and the
second submits the driver. Therefore a crash between the rounds neither loses an attempt nor starts
it twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.restart_state import RestartState
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import Resolved, resolve
from raggrpo_operator.core.spec.violation import Violation, errors
from raggrpo_operator.core.state.conditions import get_condition, has_ended, is_true

from .actions import (
    Action,
    DeleteCluster,
    DeletePreflight,
    DeletePush,
    DeleteStaging,
    StopAgent,
    StopRetrievers,
)
from .after_attempt import push, recovery
from .after_attempt.classification import classify
from .before_attempt import launch, preflight, services, staging, start_from
from .before_attempt.queueing import update_queued
from .deadlines import active_deadline, outages
from .during_attempt import follow
from .during_attempt.progress import update_progress
from .observed import AttemptObserved, ClusterObserved, Observed, SubmissionStatus
from .round import PODS_NOT_READY, RELEASE_SECONDS, Decision, Round
from .warnings import update_warnings

PEER_LOSS_EXIT_CODES = frozenset(
    {ExitCode.ROLLOUT_ENGINE_LOST, ExitCode.TRAINER_RANK_LOST, ExitCode.COLLECTIVE_TIMEOUT}
)
"""Exit codes that the loss of a pod may explain; see `_delay_for_evidence`."""
SUCCESS_VERIFICATION_SECONDS = 60.0
"""Seconds to wait for the final progress before exit code 0 is evaluated without progress."""


def decide(job: RagGrpoJob, observed: Observed, now: datetime) -> Decision:
    """Return the next status, the actions and the requeue delay for an observed job."""
    if job.metadata.deletion_timestamp:  # Kubernetes garbage-collects the job's objects
        return Decision(job.status)
    resolved = resolve(job, job.status.preflight.known_facts)
    status = replace(
        job.status,
        observed_generation=job.metadata.generation,
        preset=str(job.spec.preset),
        start_time=job.status.start_time or now,
    )
    this = Round(job, observed, now, status, resolved)

    spec_violations: tuple[Violation, ...] = ()
    if not _is_accepted(job):  # even a newer release does not validate an accepted spec again
        spec_violations = violations(job, resolved, in_pods=observed.in_pods)
        with_facts = _violations_with_facts(job, resolved, in_pods=observed.in_pods)
        update_warnings(this, [*spec_violations, *with_facts])
    if fatal := errors(spec_violations):  # 1. an invalid spec starts nothing
        return _reject(this, fatal)
    this.set_condition(ConditionType.ACCEPTED, True, ConditionReason.VALID)
    if has_ended(this.status) and not _reopen(this):  # 2. a job that has ended
        return _finish(this)
    is_queued = update_queued(this)
    _advance_deadline(this, is_held_back=is_queued or this.spec.suspend)
    if _is_running(this.status):  # 3. an attempt is recorded or running
        return _continue_attempt(this)
    if this.spec.suspend:  # 4. a suspended job waits
        return _suspend(this)
    if not is_queued:
        this.set_condition(ConditionType.SUSPENDED, False, ConditionReason.NOT_SUSPENDED)
    limit = this.spec.active_deadline_seconds
    if timeout := active_deadline.timeout_message(limit, this.state.spent, now):
        return preflight.fail_before_attempt(this, Cause.DEADLINE_EXCEEDED, timeout)
    this.record_observation()
    if (decision := start_from.resolve_start(this)) is not None:
        return decision
    if (decision := staging.run_staging(this)) is not None:  # 5. models and data
        return decision
    if (decision := preflight.run_preflight(this)) is not None:  # 6. checks before any GPU is used
        return decision
    if (decision := services.wait_for_services(this)) is not None:  # 7. retrievers and agent
        return decision
    return launch.record_next_attempt(this)  # 8. the next attempt


def _reject(this: Round, fatal: Sequence[Violation]) -> Decision:
    lines = "\n".join(v.line() for v in fatal)
    this.set_condition(ConditionType.ACCEPTED, False, fatal[0].reason, lines)
    if _is_running(this.status):
        if this.record.started is not None:  # a submitted attempt keeps its configuration
            return _continue_attempt(this)
        message = "the spec became invalid before the attempt was submitted"
        return recovery.settle(this, Cause.SUSPENDED, message)
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.INVALID)
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.INVALID)
    this.actions.extend(_releases(this.observed))
    return this.decision(requeue_after=None)


def _is_accepted(job: RagGrpoJob) -> bool:
    accepted = get_condition(job.status, ConditionType.ACCEPTED)
    return accepted.status == "True" and accepted.observed_generation == job.metadata.generation


def _violations_with_facts(
    job: RagGrpoJob, resolved: Resolved, *, in_pods: bool
) -> tuple[Violation, ...]:
    """Return the violations found with preflight's facts, or () without facts for this spec."""
    last = job.status.preflight
    if last.known_facts is None or last.spec_hash != preflight.spec_hash(job):
        return ()
    return violations(job, resolved, last.known_facts, in_pods=in_pods)


def _advance_deadline(this: Round, *, is_held_back: bool) -> None:
    running_since = this.record.started if _is_running(this.status) else None
    this.store(
        active_deadline.advance_timer(
            this.state.spent, running_since, this.now, is_held_back=is_held_back
        )
    )


def _is_running(status: JobStatus) -> bool:
    """Return whether the newest attempt has not ended."""
    return bool(status.attempts) and status.attempts[0].cause is None


def _reopen(this: Round) -> bool:
    """Reopen an ended job if the user has requested this; return whether the job is reopened."""
    status = this.status
    is_complete = is_true(status, ConditionType.COMPLETE)
    has_failed = is_true(status, ConditionType.FAILED)
    last_preflight = status.preflight
    retry = recovery.requested_retry(this.job)
    is_requested = (
        (is_complete and this.spec.training.total_steps > status.progress.total_steps)
        or (has_failed and retry != status.retry)
        # A job that failed before its first attempt is reopened by a change of its spec.
        or (
            has_failed
            and not status.attempt
            and last_preflight.spec_hash != preflight.spec_hash(this.job)
        )
    )
    if not is_requested:
        return False
    failure = get_condition(status, ConditionType.FAILED)
    pinned = status.pinned
    this.set_condition(ConditionType.COMPLETE, False, ConditionReason.REOPENED)
    this.set_condition(ConditionType.FAILED, False, ConditionReason.REOPENED)
    if failure.reason == Cause.IMAGE_CHANGED:  # by retrying, the user accepts the new image
        pinned = replace(pinned, image_id="")
    if has_failed:
        this.set_condition(ConditionType.PREFLIGHT_PASSED, None, ConditionReason.REOPENED)
        last_preflight = replace(last_preflight, spec_hash="")
        this.status = replace(this.status, staging=replace(status.staging, request_hash=""))
    this.status = replace(
        this.status,
        preflight=last_preflight,
        pinned=pinned,
        restarts=replace(status.restarts, since_progress=0),
        restart_state=RestartState(
            remedies=replace(this.state.remedies, failures_by_node={}),
            slowest_save_seconds=this.state.slowest_save_seconds,
        ),
        retry=retry,
        completion_time=None,
    )
    return True


def _finish(this: Round) -> Decision:
    """Release all resources of a job that has ended, then push its results."""
    if not push.is_push_due(this.job, this.status):
        return _release_all(this)
    this.actions.extend(each for each in _releases(this.observed) if each != DeletePush())
    if this.actions:
        return this.decision(requeue_after=RELEASE_SECONDS)
    return push.push_results(this)


def _release_all(this: Round) -> Decision:
    """Release all resources; requeue only while any of them exists."""
    this.actions.extend(_releases(this.observed))
    return this.decision(requeue_after=RELEASE_SECONDS if this.actions else None)


def _releases(observed: Observed) -> Iterator[Action]:
    if observed.cluster is not None:
        yield DeleteCluster(observed.cluster.number)
    if observed.retrievers:
        yield StopRetrievers()
    if observed.agent is not None:
        yield StopAgent()
    if observed.staging is not None:
        yield DeleteStaging()
    if observed.preflight is not None:
        yield DeletePreflight()
    if observed.push is not None:
        yield DeletePush()


def _suspend(this: Round) -> Decision:
    this.set_condition(
        ConditionType.SUSPENDED, True, ConditionReason.SUSPENDED, this.suspend_message
    )
    outages.clear_waiting(this, ConditionReason.SUSPENDED)
    this.store(outages.reset_timer(this.state.watch))
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.SUSPENDED)
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.SUSPENDED)
    return _release_all(this)


def _continue_attempt(this: Round) -> Decision:
    """Start the recorded attempt, follow it while it runs, or settle its end."""
    observed, record, intent = this.observed, this.record, this.state.retry.intent
    this.record_observation()
    cluster = observed.cluster
    if (
        cluster is not None and cluster.number < record.cluster
    ):  # first delete the cluster of an earlier attempt
        this.actions.append(DeleteCluster(cluster.number))
        return this.decision(RELEASE_SECONDS)
    services.ensure_services(this)
    services.report_services(this)
    # Ignore observations of earlier attempts and clusters.
    own = cluster if cluster is not None and cluster.number == record.cluster else None
    attempt, progress = observed.attempt, observed.progress
    attempt = attempt if attempt is not None and attempt.number == record.number else None
    progress = progress if progress is not None and progress.attempt == record.number else None
    is_waiting = record.started is None and attempt is None and intent is None
    limit = this.spec.active_deadline_seconds
    timeout = active_deadline.timeout_message(limit, this.state.spent, this.now)
    if is_waiting and timeout:
        detail = f"; the cluster was not ready: {own.message or PODS_NOT_READY}" if own else ""
        return recovery.settle(this, Cause.DEADLINE_EXCEEDED, timeout + detail)
    if record.started is None:
        if cluster is None and intent is None:
            return launch.start_cluster(this)
        if own is not None and not own.is_lost and not own.is_ready:
            return launch.wait_for_cluster(this, own)
        if own is not None and not own.is_lost and attempt is None:
            return launch.submit(this, own)
    is_unverified = progress is None and _delay_unverified_success(this, attempt)
    if is_unverified or _delay_for_evidence(this, attempt):
        return this.decision(requeue_after=0.5)
    end = classify(
        attempt,
        own,
        progress,
        was_reported=record.started is not None and observed.is_head_reachable,
        intent=intent,
        total_steps=this.spec.training.total_steps,
    )
    update_progress(this, attempt, progress)
    if end is None:
        if own is not None:
            _update_cluster(this, own)
        return follow.follow(this, progress)
    message = follow.stop_message(this.status, end.cause) or end.message
    return recovery.settle(this, end.cause, message, end.short_of)


def _update_cluster(this: Round, cluster: ClusterObserved) -> None:
    """Record the image ID and readiness of the cluster.

    The image ID or readiness may have been reported only after the driver was submitted.
    """
    launch.pin_image(this, cluster)
    if cluster.is_ready:
        this.set_condition(ConditionType.CLUSTER_READY, True, ConditionReason.READY)


def _delay_unverified_success(this: Round, attempt: AttemptObserved | None) -> bool:
    """Return whether to wait for the final /progress that verifies exit code 0.

    If the driver has succeeded, sets Progressing to False, which starts the wait's timer.
    """
    if attempt is None or attempt.status is not SubmissionStatus.SUCCEEDED:
        return False
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.VERIFYING_SUCCESS)
    return this.seconds_in(ConditionType.PROGRESSING) < SUCCESS_VERIFICATION_SECONDS


def _delay_for_evidence(this: Round, attempt: AttemptObserved | None) -> bool:
    """Return whether to wait for evidence in pod statuses that explains the driver's exit.

    If evidence may arrive, sets Progressing to False, which starts the wait's timer.
    """
    limit, cluster = this.observed.evidence_seconds, this.observed.cluster
    if not limit or attempt is None or attempt.exit_code not in PEER_LOSS_EXIT_CODES:
        return False
    if cluster is None or cluster.is_lost or cluster.is_queued or cluster.cause is not None:
        return False
    if this.state.retry.intent is not None:
        return False
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.WAITING_FOR_EVIDENCE)
    return this.seconds_in(ConditionType.PROGRESSING) < limit
