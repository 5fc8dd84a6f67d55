"""Nodes that failed repeatedly under a job: its Ray pods go elsewhere while they can. Pure.

One is taken off every count for each day, and for every ten checkpoints, that the job gets through
without another failure that is blamed on a node: what happens twice in weeks is no pattern.
"""

from dataclasses import replace
from datetime import datetime

from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import Remedies
from raggrpo_operator.core.lifecycle.observed import ClusterObserved

MAX_NODES = 64
"""As many as status can hold; the ones that failed least recently are forgotten."""
DAY_SECONDS = 86_400.0
CHECKPOINTS = 10


def with_decayed_counts(status: JobStatus, every_steps: int, now: datetime) -> Remedies:
    """Return the remedies with the counts as they are worth now.

    `every_steps` is the distance of two checkpoints, 0 if only the end is saved.
    """
    remedies = status.restart_state.remedies
    if (since := remedies.node_failed_at) is None:
        return remedies
    days = int(max(0.0, (now - since).total_seconds()) / DAY_SECONDS)
    steps = max(0, _saved(status) - remedies.node_failed_step)
    less = days + (steps // (CHECKPOINTS * every_steps) if every_steps else 0)
    counts = {node: count - less for node, count in remedies.failures_by_node.items()}
    kept = {node: count for node, count in counts.items() if count > 0}
    return replace(remedies, failures_by_node=kept)


def avoided_nodes(remedies: Remedies, recovery: RecoverySpec) -> tuple[str, ...]:
    """Return the nodes that get Ray pods of the job only where no other fits, sorted."""
    limit = recovery.exclude_node_after_failures
    failed = remedies.failures_by_node.items()
    return tuple(sorted(node for node, failures in failed if 0 < limit <= failures))


def with_node_failure(
    status: JobStatus,
    cluster: ClusterObserved | None,
    cause: Cause,
    every_steps: int,
    now: datetime,
) -> Remedies:
    """Return the remedies with the node counted that this end is blamed on, if there is one."""
    if cluster is None or not cluster.node or cluster.cause is not cause:
        return status.restart_state.remedies
    remedies = with_decayed_counts(status, every_steps, now)
    counts = dict(remedies.failures_by_node)
    counts[cluster.node] = counts.pop(cluster.node, 0) + 1
    newest = dict(list(counts.items())[-MAX_NODES:])
    return replace(
        remedies, failures_by_node=newest, node_failed_at=now, node_failed_step=_saved(status)
    )


def _saved(status: JobStatus) -> int:
    return status.checkpoint.step if status.checkpoint is not None else 0
