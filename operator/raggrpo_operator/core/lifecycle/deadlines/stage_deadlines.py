"""Deadlines of the stages of an attempt, and advice for slow stages. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from raggrpo_api.spec.recovery import Deadlines
from raggrpo_api.trainer.progress import Progress, Stage

MIN_STEP_LIMIT_SECONDS = 60.0
"""Minimum deadline of a step; slow disks and garbage collection may delay a step by seconds."""
CHECKPOINT_ADVICE = "check the volume of checkpoint.path"


@dataclass(frozen=True, slots=True)
class StageGuide:
    """Deadline field and advice for one stage."""

    field: str
    """Name of the field in `Deadlines` with the deadline of the stage."""
    advice: str
    """Text for the user: what the stage waits for, and what to check."""


GUIDES: Mapping[Stage, StageGuide] = {
    Stage.CONNECTING: StageGuide(
        "loading_model_seconds",
        "the driver waits for its ranks; check that all pods are ready, and read the driver's log",
    ),
    Stage.LOADING_MODEL: StageGuide(
        "loading_model_seconds",
        "the ranks read model.path and the checkpoint; check the volume's throughput",
    ),
    Stage.READING_DATA: StageGuide(
        "loading_model_seconds",
        "the driver reads data.trainFiles and data.validationFiles and hashes files that have "
        "changed; check the volume's throughput, or copy the files with data.stageToLocalDisk",
    ),
    Stage.STARTING_ROLLOUT: StageGuide(
        "starting_rollout_seconds",
        "vLLM starts, reads the model and compiles; check the driver's log, or skip the "
        "compilation with rollout.enforceEager",
    ),
    Stage.WARMING_RETRIEVAL: StageGuide(
        "warming_retrieval_seconds",
        "the driver makes its first calls to the RAG endpoints; to measure one call to each "
        "endpoint, run raggrpo check",
    ),
    Stage.FIRST_STEP: StageGuide(
        "first_step_seconds",
        "the attempt runs its first retrieval, generation, rewards and update; check the driver's "
        "log for failed calls, and whether data.maxResponseLength is too large for the device",
    ),
    Stage.TRAINING: StageGuide(
        "step_timeout_factor",
        "the step takes much longer than usual; check the stacks in the log folder",
    ),
    Stage.CHECKPOINTING: StageGuide("checkpoint_seconds", CHECKPOINT_ADVICE),
    Stage.VALIDATING: StageGuide(
        "validation_seconds", "to validate faster, lower validation.maxSamples"
    ),
    Stage.EXPORTING: StageGuide("checkpoint_seconds", CHECKPOINT_ADVICE),
    Stage.WAITING_FOR_ENDPOINT: StageGuide(
        "outage_seconds", "check the service; the attempt continues once it responds"
    ),
    Stage.FINISHED: StageGuide("checkpoint_seconds", CHECKPOINT_ADVICE),
}


def stage_limit(progress: Progress, deadlines: Deadlines) -> float:
    """Return the deadline of the current stage in seconds."""
    limit = float(getattr(deadlines, GUIDES[progress.stage].field))
    if progress.stage is Stage.TRAINING:
        return max(MIN_STEP_LIMIT_SECONDS, limit * progress.seconds_per_step)
    return limit


def advice(stage: Stage) -> str:
    """Return the advice for a stage, including the deadline field to increase."""
    guide = GUIDES[stage]
    field = f"recovery.deadlines.{to_camel(guide.field)}"
    return f"{guide.advice}; to wait longer, increase {field}"
