"""Launch an attempt: record it, start a Ray cluster, wait until ready, submit a driver. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from raggrpo_api.fields.base import AttemptNumber, ClusterNumber
from raggrpo_api.job import Metadata
from raggrpo_api.names import cluster_name
from raggrpo_api.status.attempts import AttemptRecord, Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import ClusterStatus, JobStatus
from raggrpo_api.status.reasons import POD_START_REASONS, ConditionReason
from raggrpo_api.status.restart_state import Baseline
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    DeleteCluster,
    PodPlan,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.after_attempt import recovery
from raggrpo_operator.core.lifecycle.after_attempt.node_exclusion import (
    avoided_nodes,
    with_decayed_counts,
)
from raggrpo_operator.core.lifecycle.deadlines import active_deadline
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.core.lifecycle.round import PODS_NOT_READY, Decision, Round
from raggrpo_operator.core.sizing.grace import HEAD_RETURN_SECONDS, grace_seconds
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.state.conditions import get_condition

from . import image_pinning, services
from .queueing import wait_in_queue

REMEDY = "to wait longer, increase recovery.deadlines.provisioningSeconds"
START_REPORT_SECONDS = 3
"""Delay in seconds before start problems of pods are reported; most resolve by themselves."""


def record_next_attempt(this: Round) -> Decision:
    """Record the next attempt once its restart delay has passed; a later round submits it."""
    status, cluster = this.status, this.observed.cluster
    keeps_cluster = cluster is not None and _is_reusable(status, cluster)
    if cluster is not None and (cluster.may_save or not keeps_cluster):
        if not cluster.may_save:  # delete the cluster before the delay, to free resources
            this.actions.append(DeleteCluster(cluster.number))
        return this.decision(requeue_after=0.5)
    if (due := this.state.retry.next_retry_time) is not None:
        wait = (due - this.now).total_seconds()
        # A longer wait than the maximum delay means that the clock was set back: do not wait.
        if 0 < wait <= recovery.max_delay(this.spec.recovery):
            remaining = active_deadline.remaining_seconds(
                this.spec.active_deadline_seconds, this.state.spent, this.now
            )
            return this.decision(min(wait, remaining) + 0.1)
    if why := this.upgrade_message():
        this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.UPGRADE_REQUIRED, why)
        return this.decision()
    _record_attempt(this, keeps_cluster=keeps_cluster)
    this.set_condition(
        ConditionType.PROGRESSING, True, ConditionReason.STARTING, f"attempt {this.record.number}"
    )
    return this.decision(requeue_after=0.0) if keeps_cluster else start_cluster(this)


def _is_reusable(status: JobStatus, cluster: ClusterObserved) -> bool:
    """Return whether the next attempt can use this cluster, whose head may still be restarting."""
    is_usable = not cluster.is_lost or cluster.may_return
    is_current = cluster.number == status.cluster.number
    return is_usable and is_current and not recovery.needs_new_cluster(status)


def _record_attempt(this: Round, *, keeps_cluster: bool) -> None:
    status, state = this.status, this.state
    cluster = status.cluster
    if not keeps_cluster:
        cluster = next_cluster(this.job.metadata, cluster)
    record = AttemptRecord(
        number=AttemptNumber(status.attempt + 1),
        tier=_tier(status, may_be_warm=keeps_cluster and not this.observed.is_queued),
        cluster=cluster.number,
        mitigation=",".join(state.remedies.mitigations),
    )
    warm_failures = state.retry.warm_failures_in_a_row if keeps_cluster else 0
    state = replace(
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
    this.status = replace(
        status,
        attempt=record.number,
        attempts=[record, *status.attempts][:10],
        cluster=cluster,
        sizing=size(this.spec, status.preflight.facts),
        progress=replace(status.progress, stage=""),
        restart_state=state,
    )


def next_cluster(metadata: Metadata, current: ClusterStatus) -> ClusterStatus:
    """Return the name and number of the job's next Ray cluster."""
    number = ClusterNumber(current.number + 1)
    return ClusterStatus(name=cluster_name(metadata.name, metadata.uid, number), number=number)


def _tier(status: JobStatus, *, may_be_warm: bool) -> Tier:
    """Return the recovery tier of the next attempt: not warm if a retained cluster has new pods."""
    if not status.attempts:
        return Tier.FIRST
    since, started = status.restart_state.launch.cluster_since, status.attempts[0].started
    was_readmitted = since is not None and (started is None or since > started)
    return Tier.WARM_CLUSTER if may_be_warm and not was_readmitted else Tier.NEW_CLUSTER


def start_cluster(this: Round) -> Decision:
    """Create the cluster of the recorded attempt."""
    if this.spec.suspend:
        return recovery.settle(this, Cause.SUSPENDED, "suspended before the attempt started")
    plan = PodPlan(this.spec, this.pod_image, this.status.sizing)
    remedies = with_decayed_counts(this.status, this.spec.checkpoint.every_steps, this.now)
    nodes = avoided_nodes(remedies, this.spec.recovery)
    this.request(create_cluster(plan, this.status, avoided_nodes=nodes))
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.PROVISIONING)
    return this.decision(requeue_after=1.0)


def create_cluster(
    plan: PodPlan, status: JobStatus, *, avoided_nodes: tuple[str, ...] = ()
) -> CreateCluster:
    """Return the action that creates the current cluster of `status`."""
    return CreateCluster(
        plan,
        status.cluster.number,
        status.cluster.name,
        ray_version=status.pinned.ray_version or status.preflight.facts.ray_version,
        grace_seconds=grace_seconds(plan.spec, status),
        avoided_nodes=avoided_nodes,
    )


def wait_for_cluster(this: Round, cluster: ClusterObserved) -> Decision:
    """Wait until the cluster's pods or processes are ready, up to the provisioning deadline."""
    was_reported = (
        get_condition(this.status, ConditionType.CLUSTER_READY).reason in POD_START_REASONS
    )
    waited = this.elapsed(this.state.launch.cluster_since)
    message = cluster.message if was_reported or waited >= START_REPORT_SECONDS else ""
    reason = cluster.waiting_reason if message else ConditionReason.PROVISIONING
    this.set_condition(ConditionType.CLUSTER_READY, False, reason, message)
    if this.spec.suspend:
        return recovery.settle(this, Cause.SUSPENDED, "suspended during provisioning")
    if cluster.is_queued:
        return wait_in_queue(this, cluster)
    if cluster.cause is not None:
        return recovery.settle(this, cluster.cause, cluster.message, cluster.short_of)
    if not this.observed.is_head_reachable and _is_head_overdue(this.status.attempts, waited):
        return _replace_cluster(this, cluster)
    limit = this.spec.recovery.deadlines.provisioning_seconds
    if waited > limit:
        why = cluster.message or PODS_NOT_READY
        message = f"the cluster was not ready within {limit} s: {why}; {REMEDY}"
        return recovery.settle(this, Cause.UNSCHEDULABLE, message)
    return this.decision(requeue_after=0.5)


def submit(this: Round, cluster: ClusterObserved) -> Decision:
    """Submit the recorded attempt to its cluster, which is ready."""
    if this.spec.suspend:
        return recovery.settle(this, Cause.SUSPENDED, "suspended before the attempt was submitted")
    if (decision := services.wait_for_services_at_submission(this)) is not None:
        return decision
    limit = this.spec.recovery.deadlines.provisioning_seconds
    if this.elapsed(services.ready_since(this) or this.state.launch.cluster_since) > limit:
        message = f"the head accepted no submission for {limit} s; {REMEDY}"
        return recovery.settle(this, Cause.HEAD_LOST, message)
    is_by_digest = this.pod_image != this.image
    if image_pinning.is_digest_pending(
        this.status.pinned,
        cluster,
        is_by_digest=is_by_digest,
        in_pods=this.observed.in_pods,
    ):
        return this.decision(requeue_after=0.5)
    change = image_pinning.change_message(
        this.status.pinned, this.image, cluster, is_by_digest=is_by_digest
    )
    if change:
        return recovery.settle(this, Cause.IMAGE_CHANGED, change)
    pin_image(this, cluster)
    agent = this.observed.agent
    config = this.attempt_config(
        {each.name: each.address for each in this.observed.retrievers},
        agent.address if agent is not None else "",
    )
    this.record = replace(this.record, config_hash=config.attempt.config_hash)
    this.set_condition(ConditionType.CLUSTER_READY, True, ConditionReason.READY)
    this.status = replace(
        this.status,
        config_hash=config.attempt.config_hash,
        resume_hash=config.attempt.resume_hash,
    )
    this.request(SubmitAttempt(config, this.record.cluster))
    return this.decision(requeue_after=0.5)


def pin_image(this: Round, cluster: ClusterObserved) -> None:
    """Pin the image that the head runs."""
    pinned = image_pinning.with_image_id(this.status.pinned, this.image, cluster)
    this.status = replace(this.status, pinned=pinned)


def _is_head_overdue(attempts: Sequence[AttemptRecord], waited: float) -> bool:
    """Return whether a retained cluster's lost head has been missing for too long.

    The limit is HEAD_RETURN_SECONDS.
    """
    is_warm = attempts[0].tier is Tier.WARM_CLUSTER
    was_lost = any(each.cause is Cause.HEAD_LOST for each in attempts[1:2])
    return is_warm and was_lost and waited > HEAD_RETURN_SECONDS


def _replace_cluster(this: Round, cluster: ClusterObserved) -> Decision:
    """Assign the recorded attempt, which has not started, to a new cluster."""
    message = f"the head did not return within {HEAD_RETURN_SECONDS} s; creating a new cluster"
    this.set_condition(
        ConditionType.CLUSTER_READY, False, ConditionReason.HEAD_RETURN_TIMEOUT, message
    )
    this.status = replace(this.status, cluster=next_cluster(this.job.metadata, this.status.cluster))
    number = this.status.cluster.number
    this.record = replace(this.record, cluster=number, tier=Tier.NEW_CLUSTER)
    this.store(replace(this.state.launch, cluster_since=this.now))
    this.store(replace(this.state.retry, warm_failures_in_a_row=0))
    this.actions.append(DeleteCluster(cluster.number))
    return this.decision(requeue_after=0.5)
