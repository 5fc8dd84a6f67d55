"""Grace periods: for a driver to save before SIGKILL, and for a lost Ray head to return. Pure."""

import math

from raggrpo_api.memory.parameters import checkpoint_bytes
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.job_status import JobStatus

HEAD_RETURN_SECONDS = 60
"""Seconds that the nodes of a Ray cluster wait for a lost head before they exit."""
MIN_SECONDS = 30
MARGIN_SECONDS = 15
SAVES_COVERED = 3
"""Save durations covered by the grace period; many jobs may save at once when nodes are drained."""
SAVE_BYTES_PER_SECOND = 500e6
"""Write speed from a node to a shared volume, assumed until a save has been measured."""


def grace_seconds(spec: JobSpec, status: JobStatus) -> int:
    """Return the seconds from SIGTERM to SIGKILL for pods of the next Ray cluster.

    The grace period covers the current step and a save. It is at most
    `deadlines.checkpointSeconds`, because a hung driver uses the whole period.
    """
    slowest = status.restart_state.slowest_save_seconds
    size = checkpoint_bytes(spec.training, status.preflight.facts)
    save = SAVES_COVERED * slowest or size / (SAVE_BYTES_PER_SECOND * spec.resources.nodes)
    needed = math.ceil(status.progress.seconds_per_step + save + MARGIN_SECONDS)
    return max(MIN_SECONDS, min(needed, spec.recovery.deadlines.checkpoint_seconds))
