"""A queueing system that holds a job's pods back or takes them away: it is no failure. Pure.

Kueue suspends the RayCluster at its creation and whenever it preempts it, and lets it go on later.
We only watch that: another RayCluster would begin at the end of the queue.
"""

from raggrpo_api.status import ConditionType, Tier
from raggrpo_operator.core.state.conditions import QUEUED, get_condition

from .round import Decision, Round


def is_queued(this: Round) -> bool:
    """Tell whether the job's cluster is held back now."""
    return this.observed.cluster is not None and this.observed.cluster.is_queued


def note_queue(this: Round) -> bool:
    """Tell whether the cluster is held back, and say so; provisioning begins when that ends."""
    cluster, suspended = this.observed.cluster, get_condition(this.status, ConditionType.SUSPENDED)
    if this.job.spec.suspend:
        return False
    if cluster is not None and cluster.is_queued:
        this.condition(ConditionType.SUSPENDED, True, QUEUED, cluster.message)
        return True
    if (suspended.status, suspended.reason) == ("True", QUEUED):
        this.condition(ConditionType.SUSPENDED, False, "Admitted")
        this.restart_provisioning()
    return False


def wait_in_queue(this: Round) -> Decision:
    """Wait for admission; there is no deadline, for queues can be long."""
    this.condition(ConditionType.CLUSTER_READY, False, QUEUED)
    this.condition(ConditionType.PROGRESSING, False, QUEUED)
    return this.end(requeue_after=None)


def tier_on_same_cluster(this: Round) -> Tier:
    """Return how an attempt on the last one's cluster begins: its pods may be all new."""
    admitted, started = this.state.launch.cluster_since, this.status.attempts[0].started
    admitted_later = admitted is not None and (started is None or admitted > started)
    return Tier.NEW_CLUSTER if is_queued(this) or admitted_later else Tier.WARM_CLUSTER
