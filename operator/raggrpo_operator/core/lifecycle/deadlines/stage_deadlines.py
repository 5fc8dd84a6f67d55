"""What an attempt does in each stage, how long it may take, and what to look at. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from raggrpo_api.spec.recovery import Deadlines
from raggrpo_api.trainer.progress import Progress, Stage

MIN_STEP_LIMIT_SECONDS = 60.0
"""Below this a slow disk or a garbage collection would look like a hang."""
CHECKPOINT_VOLUME = "look at the volume of checkpoint.path"


@dataclass(frozen=True, slots=True)
class StageGuide:
    """One stage."""

    field: str
    """Name of the `Deadlines` field that limits it."""
    advice: str
    """What it waits for, and what a person can look at."""


GUIDES: Mapping[Stage, StageGuide] = {
    Stage.CONNECTING: StageGuide(
        "loading_model_seconds",
        "the driver waits for its ranks: see whether every pod is ready, and the driver's log",
    ),
    Stage.LOADING_MODEL: StageGuide(
        "loading_model_seconds",
        "the ranks read model.path and the checkpoint: a slow volume makes it long",
    ),
    Stage.STARTING_ROLLOUT: StageGuide(
        "starting_rollout_seconds",
        "vLLM starts, reads the model and compiles: its words are in the driver's log, and "
        "rollout.enforceEager leaves the compilation out",
    ),
    Stage.WARMING_RETRIEVAL: StageGuide(
        "warming_retrieval_seconds",
        "the first calls of the RAG endpoints: raggrpo check times one call of each",
    ),
    Stage.FIRST_STEP: StageGuide(
        "first_step_seconds",
        "retrieval, generation, rewards and update for the first time: see the driver's log for "
        "calls that fail, and data.maxResponseLength for lengths that are large for the device",
    ),
    Stage.TRAINING: StageGuide(
        "step_timeout_factor",
        "the step that runs takes far longer than usual: the stacks show where it stands",
    ),
    Stage.CHECKPOINTING: StageGuide("checkpoint_seconds", CHECKPOINT_VOLUME),
    Stage.VALIDATING: StageGuide(
        "validation_seconds", "lower validation.maxSamples if it is only slow"
    ),
    Stage.EXPORTING: StageGuide("checkpoint_seconds", CHECKPOINT_VOLUME),
    Stage.WAITING_FOR_ENDPOINT: StageGuide(
        "outage_seconds", "see why the service does not answer: the attempt goes on by itself"
    ),
    Stage.FINISHED: StageGuide("checkpoint_seconds", CHECKPOINT_VOLUME),
}


def stage_limit(progress: Progress, deadlines: Deadlines) -> float:
    """Return how long the present stage may last without a step (seconds)."""
    limit = float(getattr(deadlines, GUIDES[progress.stage].field))
    if progress.stage is Stage.TRAINING:
        return max(MIN_STEP_LIMIT_SECONDS, limit * progress.seconds_per_step)
    return limit


def advice(stage: Stage) -> str:
    """Return what a stage waits for, and the field with which a slow one gets more time."""
    guide = GUIDES[stage]
    return f"{guide.advice}; recovery.deadlines.{to_camel(guide.field)} gives it more time"
