"""A queueing system holds a job's pods back or takes them away; this is not a failure. Pure.

Kueue suspends the RayCluster at its creation and whenever it preempts it, and lets it go on later.
We only watch that: another RayCluster would begin at the end of the queue.
"""

from dataclasses import replace

from raggrpo_api.status import ConditionType
from raggrpo_operator.core.state.conditions import QUEUED, get_condition

from .round import Decision, Round


def note_queue(this: Round) -> bool:
    """Return whether the cluster is held back, and say so; provisioning begins when that ends."""
    cluster, suspended = this.observed.cluster, get_condition(this.status, ConditionType.SUSPENDED)
    if this.spec.suspend:
        return False
    if cluster is not None and cluster.is_queued:
        this.condition(ConditionType.SUSPENDED, True, QUEUED, cluster.message)
        return True
    if (suspended.status, suspended.reason) == ("True", QUEUED):
        this.condition(ConditionType.SUSPENDED, False, "Admitted")
        this.remember(replace(this.state.launch, cluster_since=this.now))
    return False


def wait_in_queue(this: Round) -> Decision:
    """Wait for admission; there is no deadline, because queues can be long."""
    this.condition(ConditionType.CLUSTER_READY, False, QUEUED)
    this.condition(ConditionType.PROGRESSING, False, QUEUED)
    return this.end(requeue_after=None)
