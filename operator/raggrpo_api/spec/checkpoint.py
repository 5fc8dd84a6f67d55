"""`spec.checkpoint`: what is saved, where, how often, and what is kept."""

from typing import Annotated

from pydantic import Field

from raggrpo_api.addresses import BackupUrl
from raggrpo_api.base import ApiModel, CheckpointPath


class BackupSpec(ApiModel):
    """Copies of checkpoints elsewhere."""

    url: BackupUrl = ""
    """Target folder; empty: no backup. Credentials come from env by reference."""
    every_steps: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Back up every so many steps."""


class CheckpointSpec(ApiModel):
    """Checkpoints of model, optimiser and data position."""

    path: CheckpointPath
    """Folder on a mounted volume; belongs to this job alone."""
    every_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 100
    """Save every so many steps; 0: only at the end (needs maxRestarts 0)."""
    keep_last: Annotated[int, Field(ge=1, le=1000)] = 3
    """Newest complete checkpoints kept; at least 2."""
    keep_best: bool = True
    """Keep the one with the best reward besides."""
    backup: BackupSpec = BackupSpec()
    """Copies elsewhere."""
