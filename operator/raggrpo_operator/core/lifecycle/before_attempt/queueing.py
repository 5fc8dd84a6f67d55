"""Queueing: wait for admission and resume after preemption; neither is a failure. Pure.

Kueue suspends a RayCluster on creation and on preemption, and resumes it on admission. The operator
keeps a suspended RayCluster, because a new RayCluster would start at the end of the queue.
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
    """Update the Suspended condition; return whether the cluster is waiting in a queue.

    The provisioning timer starts when the queue admits the cluster.
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
    """Wait for the queue to admit the cluster, by default without a deadline.

    Time without a running operator counts too, because a queued job is not reconciled regularly.
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
