"""Nodes that a job's Ray pods avoid: `recovery.excludeNodeAfterFailures`. Pure.

Failures are counted by node. Each count decreases by one per `DECAY_SECONDS`, and by one per
`DECAY_CHECKPOINTS`, in which no failure was attributed to any node.
"""

from dataclasses import replace
from datetime import datetime

from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import Remedies
from raggrpo_operator.core.lifecycle.observed import ClusterObserved

MAX_NODES = 64
"""Maximum number of nodes in the status; nodes that failed least recently are dropped."""
DECAY_SECONDS = 86_400.0
"""Seconds without a node failure after which each count decreases by one."""
DECAY_CHECKPOINTS = 10
"""Number of checkpoints without a node failure after which each count decreases by one."""


def with_decayed_counts(status: JobStatus, every_steps: int, now: datetime) -> Remedies:
    """Return the remedies with failure counts reduced by the decay up to `now`.

    `every_steps` is the checkpoint interval in steps, or 0 if only the last step is saved.
    """
    remedies = status.restart_state.remedies
    if (since := remedies.node_failed_at) is None:
        return remedies
    days = int(max(0.0, (now - since).total_seconds()) / DECAY_SECONDS)
    steps = max(0, _saved_step(status) - remedies.node_failed_step)
    decay = days + (steps // (DECAY_CHECKPOINTS * every_steps) if every_steps else 0)
    counts = {node: count - decay for node, count in remedies.failures_by_node.items()}
    positive = {node: count for node, count in counts.items() if count > 0}
    return replace(remedies, failures_by_node=positive)


def avoided_nodes(remedies: Remedies, recovery: RecoverySpec) -> tuple[str, ...]:
    """Return the sorted names of the nodes that Ray pods use only if no other node fits."""
    limit = recovery.exclude_node_after_failures
    counts = remedies.failures_by_node.items()
    return tuple(sorted(node for node, failures in counts if 0 < limit <= failures))


def with_node_failure(
    status: JobStatus,
    cluster: ClusterObserved | None,
    cause: Cause,
    every_steps: int,
    now: datetime,
) -> Remedies:
    """Return the remedies with one more failure of the node to which the loss is attributed."""
    if cluster is None or not cluster.node or cluster.cause is not cause:
        return status.restart_state.remedies
    remedies = with_decayed_counts(status, every_steps, now)
    counts = dict(remedies.failures_by_node)
    counts[cluster.node] = counts.pop(cluster.node, 0) + 1
    newest = dict(list(counts.items())[-MAX_NODES:])
    return replace(
        remedies,
        failures_by_node=newest,
        node_failed_at=now,
        node_failed_step=_saved_step(status),
    )


def _saved_step(status: JobStatus) -> int:
    return status.checkpoint.step if status.checkpoint is not None else 0
