import re
from itertools import pairwise

import pytest
from pydantic import BaseModel

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.recovery import Deadlines
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.core.lifecycle.deadlines.stage_deadlines import GUIDES, advice, stage_limit

FIELD = re.compile(r"\b(?:[a-z]+)(?:\.[a-z][a-zA-Z]+)+\b")


def exists(path: str) -> bool:
    model: type[BaseModel] = JobSpec
    for name in path.split("."):
        fields = {f.alias or key: f.annotation for key, f in model.model_fields.items()}
        if name not in fields:
            return False
        if isinstance(inner := fields[name], type) and issubclass(inner, BaseModel):
            model = inner
    return True


@pytest.mark.row("A10")
@pytest.mark.parametrize("stage", Stage)
def test_stage_advice_names_existing_deadline_fields(stage: Stage) -> None:
    words = advice(stage)

    assert "; to wait longer, increase recovery.deadlines." in words
    named = FIELD.findall(words)
    assert named
    assert all(map(exists, named)), named


def test_step_deadline_is_multiple_of_step_time_with_minimum() -> None:
    deadlines = Deadlines(step_timeout_factor=10.0)
    usual = [2.0, 6.0, 15.0]

    at = [
        Progress(attempt=1, stage=Stage.TRAINING, total_steps=9, seconds_per_step=seconds)
        for seconds in usual
    ]

    assert [stage_limit(each, deadlines) for each in at] == [60.0, 60.0, 150.0]


@pytest.mark.parametrize("stage", [*GUIDES])
def test_stage_deadline_follows_spec(stage: Stage) -> None:
    field = GUIDES[stage].field
    progress = Progress(attempt=1, stage=stage, total_steps=9, seconds_per_step=100.0)

    limits = [
        stage_limit(progress, Deadlines().model_copy(update={field: value}))
        for value in (10.0, 20.0, 40.0)
    ]

    assert all(longer == 2 * shorter for shorter, longer in pairwise(limits))


@pytest.mark.parametrize(
    ("stage", "topic", "field"),
    [
        (Stage.CONNECTING, "all pods are ready", "loadingModelSeconds"),
        (Stage.LOADING_MODEL, "model.path and the checkpoint", "loadingModelSeconds"),
        (Stage.READING_DATA, "data.trainFiles", "loadingModelSeconds"),
        (Stage.STARTING_ROLLOUT, "vLLM starts", "startingRolloutSeconds"),
        (Stage.WARMING_RETRIEVAL, "raggrpo check", "warmingRetrievalSeconds"),
        (Stage.FIRST_STEP, "data.maxResponseLength", "firstStepSeconds"),
        (Stage.TRAINING, "stacks in the log folder", "stepTimeoutFactor"),
        (Stage.CHECKPOINTING, "checkpoint.path", "checkpointSeconds"),
        (Stage.VALIDATING, "validation.maxSamples", "validationSeconds"),
        (Stage.EXPORTING, "checkpoint.path", "checkpointSeconds"),
        (Stage.WAITING_FOR_ENDPOINT, "check the service", "outageSeconds"),
        (Stage.FINISHED, "checkpoint.path", "checkpointSeconds"),
    ],
)
def test_stage_advice_names_topic_and_deadline_of_stage(
    stage: Stage, topic: str, field: str
) -> None:
    words = advice(stage)
    assert topic in words
    assert words.endswith(f"increase recovery.deadlines.{field}")
