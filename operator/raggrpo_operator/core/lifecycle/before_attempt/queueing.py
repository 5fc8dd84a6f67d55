"""A queueing system holds a job's pods back or takes them away; this is not a failure. Pure.

Kueue suspends the RayCluster at its creation and whenever it preempts it, and lets it go on later.
We only watch that: another RayCluster would begin at the end of the queue.
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
    """Return whether the cluster is held back, and say so; provisioning begins when that ends."""
    cluster, suspended = this.observed.cluster, get_condition(this.status, ConditionType.SUSPENDED)
    if this.spec.suspend:
        return False
    if cluster is not None and cluster.is_queued:
        this.set_condition(ConditionType.SUSPENDED, True, ConditionReason.QUEUED, cluster.message)
        return True
    if (suspended.status, suspended.reason) == ("True", ConditionReason.QUEUED):
        this.set_condition(ConditionType.SUSPENDED, False, ConditionReason.ADMITTED)
        this.store(replace(this.state.launch, cluster_since=this.now))
    return False


def wait_in_queue(this: Round, cluster: ClusterObserved) -> Decision:
    """Wait for admission, by default without a deadline: only the user knows how long a queue is.

    All time counts, looked at or not: nothing happens to a queued job that is worth a look.
    """
    this.set_condition(ConditionType.CLUSTER_READY, False, ConditionReason.QUEUED)
    this.set_condition(ConditionType.PROGRESSING, False, ConditionReason.QUEUED)
    limit = this.spec.recovery.deadlines.queue_seconds
    waited = this.seconds_in(ConditionType.SUSPENDED)
    if not limit:
        return this.decision(requeue_after=None)
    if waited <= limit:
        return this.decision(min(limit, limit - waited) + 0.1)
    message = f"{cluster.message} for more than {limit} s"
    remedy = "recovery.deadlines.queueSeconds gives it more time, 0 any"
    return recovery.settle(this, Cause.UNSCHEDULABLE, f"{message}; {remedy}")
