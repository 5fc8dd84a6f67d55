"""`decide`: the only place where the life of a job is decided. Pure; safe to call twice.

An attempt takes two rounds: the first writes its number to status, the second submits it. So
a crash between any two rounds loses nothing and starts nothing twice.
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
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Violation, errors
from raggrpo_operator.core.state.conditions import get_condition, is_true

from .actions import Action, DeleteCluster, DeletePreflight, StopRetrievers
from .after_attempt import recovery
from .after_attempt.classification import classify
from .before_attempt import image_pinning, launch, preflight
from .before_attempt.queueing import update_queued
from .deadlines import active_deadline, outages
from .during_attempt import follow
from .observed import AttemptObserved, Observed, SubmissionStatus
from .round import PODS_NOT_READY, RELEASE_SECONDS, Decision, Round
from .warnings import update_warnings

LOST_OTHERS = frozenset(
    {ExitCode.ROLLOUT_ENGINE_LOST, ExitCode.TRAINER_RANK_LOST, ExitCode.COLLECTIVE_TIMEOUT}
)
"""Exit codes that lost infrastructure may explain; its evidence wins if it arrives in time."""
PROOF_SECONDS = 60.0
"""How long an exit code of 0 may wait until the final progress has been read."""


def decide(job: RagGrpoJob, observed: Observed, now: datetime) -> Decision:
    """Return what to do for this job, given what was observed of it and the time."""
    if job.metadata.deletion_timestamp:  # its objects are garbage-collected
        return Decision(job.status)
    resolved = resolve(job, job.status.preflight.known_facts)
    status = replace(
        job.status,
        observed_generation=job.metadata.generation,
        preset=str(job.spec.preset),
        start_time=job.status.start_time or now,
    )
    this = Round(job, observed, now, status, resolved)

    found: tuple[Violation, ...] = ()
    if not _is_accepted(job):  # what was accepted once is not judged again, nor by a newer release
        found = violations(job, resolved, in_pods=observed.in_pods)
        update_warnings(this, [*found, *_on_facts(this)])
    if wrong := errors(found):  # 1. an invalid spec starts nothing
        return _invalid(this, wrong)
    this.set_condition(ConditionType.ACCEPTED, True, ConditionReason.VALID)
    if _has_ended(this):  # 2. a job that is over stays over, unless the user reopens it
        return _clean_up(this)
    is_queued = update_queued(this)
    active_deadline.run_clock(this, is_held_back=is_queued or this.spec.suspend)
    if _is_running(this.status):  # 3. an attempt is under way
        return _attend(this)
    if this.spec.suspend:  # 4. suspended: wait
        return _suspended(this)
    if not is_queued:
        this.set_condition(ConditionType.SUSPENDED, False, ConditionReason.NOT_SUSPENDED)
    if late := active_deadline.exceeded(this):
        return preflight.fail_before_attempt(this, Cause.DEADLINE_EXCEEDED, late)
    this.record_observation()
    if (decision := preflight.preflight(this)) is not None:  # 5. checks and facts, before any GPU
        return decision
    if (decision := preflight.retrievers(this)) is not None:  # 6. managed retrievers
        return decision
    return launch.next_attempt(this)  # 7. start the next attempt


def _invalid(this: Round, found: Sequence[Violation]) -> Decision:
    lines = "\n".join(v.line() for v in found)
    this.set_condition(ConditionType.ACCEPTED, False, found[0].reason, lines)
    if _is_running(this.status):
        if this.record.started is not None:  # it keeps the configuration it was submitted with
            return _attend(this)
        message = "the spec became invalid before it was submitted"
        return recovery.settle(this, Cause.SUSPENDED, message)
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.INVALID)
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.INVALID)
    this.actions.extend(_releases(this.observed))
    return this.decision(requeue_after=None)


def _is_accepted(job: RagGrpoJob) -> bool:
    accepted = get_condition(job.status, ConditionType.ACCEPTED)
    return accepted.status == "True" and accepted.observed_generation == job.metadata.generation


def _on_facts(this: Round) -> tuple[Violation, ...]:
    """Return what the rules find with the facts, if preflight read them for this spec."""
    last = this.status.preflight
    if last.known_facts is None or last.spec_hash != preflight.spec_hash(this.job):
        return ()
    facts, in_pods = last.known_facts, this.observed.in_pods
    return violations(this.job, this.resolved, facts, in_pods=in_pods)


def _is_running(status: JobStatus) -> bool:
    """Return whether the newest attempt has not ended."""
    return bool(status.attempts) and status.attempts[0].cause is None


def _has_ended(this: Round) -> bool:
    """Return whether the job is over; reopen it when the user asked for more."""
    status = this.status
    complete = is_true(status, ConditionType.COMPLETE)
    failed = is_true(status, ConditionType.FAILED)
    if not complete and not failed:
        return False
    last, retry = status.preflight, recovery.requested_retry(this.job)
    pinned, failure = status.pinned, get_condition(status, ConditionType.FAILED)
    reopened = (
        (complete and this.spec.training.total_steps > status.progress.total_steps)
        or (failed and retry != status.retry)
        # Never begun: does the spec differ from the one that preflight judged?
        or (failed and not status.attempt and last.spec_hash != preflight.spec_hash(this.job))
    )
    if not reopened:
        return True
    this.set_condition(ConditionType.COMPLETE, False, ConditionReason.REOPENED)
    this.set_condition(ConditionType.FAILED, False, ConditionReason.REOPENED)
    if failure.reason == Cause.IMAGE_CHANGED:  # whoever asks for another try accepts it
        pinned = replace(pinned, image_id="")
    if failed:
        this.set_condition(ConditionType.PREFLIGHT_PASSED, None, ConditionReason.REOPENED)
        last = replace(last, spec_hash="")
    this.status = replace(
        this.status,
        preflight=last,
        pinned=pinned,
        restarts=replace(status.restarts, since_progress=0),
        restart_state=RestartState(
            remedies=replace(this.state.remedies, failures_by_node={}),
            slowest_save_seconds=this.state.slowest_save_seconds,
        ),
        retry=retry,
        completion_time=None,
    )
    return False


def _clean_up(this: Round) -> Decision:
    """Release everything; schedule nothing further."""
    this.actions.extend(_releases(this.observed))
    return this.decision(requeue_after=RELEASE_SECONDS if this.actions else None)


def _releases(observed: Observed) -> Iterator[Action]:
    if observed.cluster is not None:
        yield DeleteCluster(observed.cluster.number)
    if observed.retrievers:
        yield StopRetrievers()
    if observed.preflight is not None:
        yield DeletePreflight()


def _suspended(this: Round) -> Decision:
    this.set_condition(
        ConditionType.SUSPENDED, True, ConditionReason.SUSPENDED, "spec.suspend is true"
    )
    outages.over(this, ConditionReason.SUSPENDED)
    this.store(outages.forgotten(this.state.watch))
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.SUSPENDED)
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.SUSPENDED)
    return _clean_up(this)


def _attend(this: Round) -> Decision:
    """Start the recorded attempt, follow it, or settle its end."""
    observed, record, intent = this.observed, this.record, this.state.retry.intent
    cluster, attempt, progress = observed.cluster, observed.attempt, observed.progress
    this.record_observation()
    if cluster is not None and cluster.number < record.cluster:  # it appeared late: delete it first
        this.actions.append(DeleteCluster(cluster.number))
        return this.decision(RELEASE_SECONDS)
    preflight.ensure_retrievers(this)
    # Observations of an earlier attempt or cluster say nothing about this one.
    own = cluster if cluster is not None and cluster.number == record.cluster else None
    attempt = attempt if attempt is not None and attempt.number == record.number else None
    progress = progress if progress is not None and progress.attempt == record.number else None
    is_waiting = record.started is None and attempt is None and intent is None
    if is_waiting and (late := active_deadline.exceeded(this)):
        waits = f"; the cluster was not ready: {own.message or PODS_NOT_READY}" if own else ""
        return recovery.settle(this, Cause.DEADLINE_EXCEEDED, late + waits)
    if record.started is None:
        if cluster is None and intent is None:
            return launch.start_cluster(this)
        if own is not None and not own.is_lost and not own.is_ready:
            return launch.wait_for_cluster(this, own)
        if own is not None and not own.is_lost and attempt is None:
            return launch.submit(this, own)
    if (progress is None and _awaits_proof(this, attempt)) or _awaits_evidence(this, attempt):
        return this.decision(requeue_after=0.5)
    ended = classify(
        attempt,
        own,
        progress,
        was_reported=record.started is not None and observed.is_head_reachable,
        intent=intent,
        total_steps=this.spec.training.total_steps,
    )
    follow.update_progress(this, attempt, progress)
    if ended is None:
        if own is not None:  # nodes may not have told it when the attempt began
            image_pinning.pin_image(this, own)
            if own.is_ready:  # not told yet if its head was silent right after the submission
                this.set_condition(ConditionType.CLUSTER_READY, True, ConditionReason.READY)
        return follow.follow(this, progress)
    message = follow.stop_message(this.status, ended.cause) or ended.message
    return recovery.settle(this, ended.cause, message, ended.short_of)


def _awaits_proof(this: Round, attempt: AttemptObserved | None) -> bool:
    """Return whether a success has to wait for its proof, /progress being unreadable now."""
    if attempt is None or attempt.status is not SubmissionStatus.SUCCEEDED:
        return False
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.VERIFYING_SUCCESS)
    return this.seconds_in(ConditionType.PROGRESSING) < PROOF_SECONDS


def _awaits_evidence(this: Round, attempt: AttemptObserved | None) -> bool:
    """Return whether to wait for evidence from the pods that a driver says it lost."""
    limit, cluster = this.observed.evidence_seconds, this.observed.cluster
    if not limit or attempt is None or attempt.exit_code not in LOST_OTHERS:
        return False
    if cluster is None or cluster.is_lost or cluster.is_queued or cluster.cause is not None:
        return False
    if this.state.retry.intent is not None:
        return False
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.WAITING_FOR_EVIDENCE)
    return this.seconds_in(ConditionType.PROGRESSING) < limit
