"""Queueing systems: waiting for admission, and preemption; neither is a failure. Pure.

Kueue suspends the RayCluster when it is created or preempted, and resumes it later. The operator
keeps the RayCluster, because a new one would start at the end of the queue.
"""

from dataclasses import replace

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_operator.core.lifecycle.after_attempt import recovery
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.state.conditions import get_condition


def update_queued(this: Round) -> bool:
    """Update Suspended; return whether a queue holds the cluster back.

    The provisioning timer starts at admission.
    """
    cluster = this.observed.cluster
    if this.spec.suspend:
        return False
    if cluster is not None and cluster.is_queued:
        this.set_condition(ConditionType.SUSPENDED, True, ConditionReason.QUEUED, cluster.message)
        return True
    suspended = get_condition(this.status, ConditionType.SUSPENDED)
    if (suspended.status, suspended.reason) == ("True", ConditionReason.QUEUED):
        this.set_condition(ConditionType.SUSPENDED, False, ConditionReason.ADMITTED)
        this.store(replace(this.state.launch, cluster_since=this.now))
    return False


def wait_in_queue(this: Round, cluster: ClusterObserved) -> Decision:
    """Wait for admission, by default without a deadline.

    Unobserved time counts as well, because a queued job is not reconciled periodically.
    """
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.QUEUED)
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.QUEUED)
    limit = this.spec.recovery.deadlines.queue_seconds
    waited = this.seconds_in(ConditionType.SUSPENDED)
    if not limit:
        return this.decision(requeue_after=None)
    if waited <= limit:
        return this.decision(min(limit, limit - waited) + 0.1)
    message = (
        f"{cluster.message} for more than {limit} s; "
        "to wait longer, increase recovery.deadlines.queueSeconds (0: no limit)"
    )
    return recovery.settle(this, Cause.UNSCHEDULABLE, message)
