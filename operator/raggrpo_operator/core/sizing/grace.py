"""How long pods that end leave the driver for its last save. Pure; used when pods are created."""

import math

from raggrpo_api.job import JobSpec
from raggrpo_api.memory import CHECKPOINT_BYTES_PER_PARAMETER
from raggrpo_api.status import JobStatus

LEAST_SECONDS = 30
MARGIN_SECONDS = 15
SAVES = 3
"""A volume on which many save at once, as when a node is drained, is slower than usual."""
SAVE_BYTES_PER_SECOND = 500e6
"""Of one node to a shared volume, until a save was measured."""


def grace_seconds(spec: JobSpec, status: JobStatus) -> int:
    """Return the seconds between SIGTERM and SIGKILL for a driver of the next Ray cluster.

    A training step under way is finished first. Never longer than a checkpoint may take: what
    takes longer hangs. It is what stopping a hung driver costs, so it is not simply generous.
    """
    slowest = status.restart_state.slowest_save_seconds
    size = CHECKPOINT_BYTES_PER_PARAMETER * status.preflight.facts.parameters
    save = SAVES * slowest or size / (SAVE_BYTES_PER_SECOND * spec.resources.nodes)
    wanted = math.ceil(status.progress.seconds_per_step + save + MARGIN_SECONDS)
    return max(LEAST_SECONDS, min(wanted, spec.recovery.deadlines.checkpoint_seconds))
