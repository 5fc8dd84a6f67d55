"""`spec.checkpoint`: what is saved, where, how often, and what is kept."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.addresses import BackupUrl
from raggrpo_api.fields.base import ApiModel, CheckpointPath


class BestBy(StrEnum):
    """What a checkpoint is judged by; more is better."""

    REWARD = "Reward"
    """Mean reward of the samples that the step was trained on."""
    VALIDATION_EXACT_MATCH = "ValidationExactMatch"
    """Share of held-out prompts that the checkpoint answers exactly, without sampling."""
    VALIDATION_REWARD = "ValidationReward"
    """Mean reward of those answers."""


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
    """Keep the best one besides."""
    best_by: BestBy = BestBy.REWARD
    """What tells the best: the step's reward, or a validation after the step it was saved at."""
    backup: BackupSpec = BackupSpec()
    """Copies elsewhere."""
