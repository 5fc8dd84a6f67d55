"""`spec.checkpoint`: path, interval, retention and backup of checkpoints."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from raggrpo_api.fields.addresses import BackupUrl
from raggrpo_api.fields.base import ApiModel, CheckpointPath
from raggrpo_api.fields.change_class import MODEL, OPERATIONAL

DEFAULT_PATH: Final = "/mnt/runs/checkpoints"


class BestBy(StrEnum):
    """Metric that ranks checkpoints; higher is better."""

    REWARD = "Reward"
    """Mean reward of the step's training samples."""
    VALIDATION_EXACT_MATCH = "ValidationExactMatch"
    """Share of held-out prompts whose greedily decoded answer is exact."""
    VALIDATION_REWARD = "ValidationReward"
    """Mean reward of these answers."""


class BackupSpec(ApiModel):
    """Copies of checkpoints on other storage."""

    url: BackupUrl = ""
    """Target folder (s3://, gs:// or file:///); empty: no backup. Credentials are read from env."""
    every_steps: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Steps between backups."""


class CheckpointSpec(ApiModel):
    """Checkpoints of model, optimizer and data position."""

    path: Annotated[CheckpointPath, MODEL] = DEFAULT_PATH
    """Folder on a mounted volume, used by this job only."""
    every_steps: Annotated[int, Field(ge=0, le=10_000_000), OPERATIONAL] = 100
    """Steps between checkpoints; 0: only after the last step (requires recovery.maxRestarts 0)."""
    keep_last: Annotated[int, Field(ge=1, le=1000), OPERATIONAL] = 3
    """Number of newest complete checkpoints to keep, at least 2."""
    keep_best: Annotated[bool, OPERATIONAL] = True
    """Keep the best checkpoint in addition to the newest ones."""
    best_by: Annotated[BestBy, OPERATIONAL] = BestBy.REWARD
    """Metric that ranks checkpoints: reward of the saved step, or a validation after it."""
    backup: Annotated[BackupSpec, OPERATIONAL] = BackupSpec()
    """Copies on other storage."""
