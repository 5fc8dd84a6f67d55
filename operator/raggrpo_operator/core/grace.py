"""How long pods that end leave the driver for its last save. Pure; used when pods are created."""

import math

from raggrpo_api.job import JobSpec
from raggrpo_api.status import JobStatus

from .sizing import CHECKPOINT_BYTES_PER_PARAMETER

LEAST_SECONDS = 30
MARGIN_SECONDS = 15
SAVES = 3
"""A volume on which many save at once, as when a node is drained, is slower than usual."""
SAVE_BYTES_PER_SECOND = 250e6
"""Of a shared volume, until a save was measured."""


def grace_seconds(spec: JobSpec, status: JobStatus) -> int:
    """Return the seconds between SIGTERM and SIGKILL for a driver of the next Ray cluster.

    A training step under way is finished first. Never longer than a checkpoint may take: what
    takes longer hangs.
    """
    slowest = status.restart_state.slowest_save_seconds
    size = CHECKPOINT_BYTES_PER_PARAMETER * status.preflight.facts.parameters
    save = SAVES * slowest if slowest else size / SAVE_BYTES_PER_SECOND
    wanted = math.ceil(status.progress.seconds_per_step + save + MARGIN_SECONDS)
    return max(LEAST_SECONDS, min(wanted, spec.recovery.deadlines.checkpoint_seconds))
