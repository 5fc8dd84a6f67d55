"""Nodes that failed repeatedly under a job: its next Ray clusters avoid them. Pure."""

from dataclasses import replace

from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.status import Cause, Remedies

from .observed import ClusterObserved

MOST_NODES = 64
"""As many as status can hold; the ones that failed least recently are forgotten."""


def avoided_nodes(remedies: Remedies, recovery: RecoverySpec) -> tuple[str, ...]:
    """Return the nodes that get no Ray pod of the job, in a stable order."""
    limit = recovery.exclude_node_after_failures
    failed = remedies.failures_by_node.items()
    return tuple(sorted(node for node, failures in failed if 0 < limit <= failures))


def with_failure(remedies: Remedies, cluster: ClusterObserved | None, cause: Cause) -> Remedies:
    """Return the remedies with the node counted that this end is blamed on, if there is one."""
    if cluster is None or not cluster.node or cluster.cause is not cause:
        return remedies
    counts = dict(remedies.failures_by_node)
    counts[cluster.node] = counts.pop(cluster.node, 0) + 1
    newest = dict(list(counts.items())[-MOST_NODES:])
    return replace(remedies, failures_by_node=newest)
