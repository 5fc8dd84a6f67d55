"""`spec.training.startFrom`: a checkpoint of another job that a new job starts from."""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

from raggrpo_api.fields.base import ApiModel, JobName, OptionalPath

START_STEP: Final = "^(Newest|Best|[0-9]{1,8})$"
NEWEST: Final = "Newest"


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


StartStep = Annotated[
    str,
    BeforeValidator(_text),
    StringConstraints(pattern=START_STEP),
    WithJsonSchema({"x-kubernetes-int-or-string": True}),
]
"""`Newest`, `Best` or the number of a step, which may be an integer in YAML."""


class OptimizerStart(StrEnum):
    """Optimizer state of the first step."""

    KEEP = "Keep"
    """That of the checkpoint."""
    RESET = "Reset"
    """New: moments are 0, as in the first step of a job."""


class DataStart(StrEnum):
    """Position in the training data at the first step."""

    CONTINUE = "Continue"
    """After the last row that the checkpoint was trained on; requires the same data and seed."""
    RESTART = "Restart"
    """First row of the first pass; the data may differ."""


class CheckpointSource(ApiModel):
    """A checkpoint folder, by its path or by its job."""

    path: OptionalPath = ""
    """Folder of a job's checkpoints (checkpoint.path), or the folder of one checkpoint."""
    job_ref: JobName | None = None
    """Another job in the namespace whose checkpoint volume this job mounts; in local runs, the
    name of a job folder next to the folder of this job."""


class StartFrom(ApiModel):
    """Start of a new job from a checkpoint of another job; steps continue with the next number."""

    checkpoint: CheckpointSource
    """Checkpoint folder: either path or jobRef."""
    step: StartStep = NEWEST
    """Newest, Best (by the other job's checkpoint.bestBy) or a step number."""
    optimizer: OptimizerStart = OptimizerStart.KEEP
    """Keep: continue with the checkpoint's optimizer state. Reset: start with a new one."""
    data: DataStart = DataStart.CONTINUE
    """Continue: after the last row used. Restart: with the first row, possibly of other data."""
