"""Every field of the spec states when it may change after the first attempt."""

from collections.abc import Iterator

import pytest

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import (
    MODEL,
    OPERATIONAL,
    OPTIMIZATION,
    ChangeClass,
    change_class,
    model_in,
)
from raggrpo_api.spec.job_spec import JobSpec


def leaf_paths(model: type[ApiModel], prefix: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        below = model_in(field.annotation)
        path = f"{prefix}{field.alias}"
        if below is None:
            yield path
        else:
            yield from leaf_paths(below, f"{path}.")


def test_spec_fields_all_have_a_class() -> None:
    paths = list(leaf_paths(JobSpec))

    assert len(paths) > 190
    assert [path for path in paths if change_class(JobSpec, path) is None] == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("rollout.temperature", OPTIMIZATION),
        ("rollout.n", OPTIMIZATION),
        ("algorithm.groupSize", OPTIMIZATION),
        ("algorithm.klCoefficient", OPTIMIZATION),
        ("data.trainBatchSize", OPTIMIZATION),
        ("training.learningRate", OPTIMIZATION),
        ("training.weightDecay", OPTIMIZATION),
        ("reward.functions[1].weight", OPTIMIZATION),
        ("retrieval.endpoints[0].topK", OPTIMIZATION),
        ("model.path", OPERATIONAL),
        ("data.trainFiles", OPERATIONAL),
        ("data.columns.answer", MODEL),
        ("data.chatTemplate", MODEL),
        ("training.seed", MODEL),
        ("retrieval.endpoints", MODEL),
        ("retrieval.endpoints[0].body.query", MODEL),
        ("retrieval.endpoints[0].response.text", MODEL),
        ("reward.functions", MODEL),
        ("reward.functions[0].judge.prompt", MODEL),
        ("checkpoint.path", MODEL),
        ("training.totalSteps", OPERATIONAL),
        ("retrieval.endpoints[0].url", OPERATIONAL),
        ("reward.functions[0].judge.retries", OPERATIONAL),
        ("recovery.deadlines.outageSeconds", OPERATIONAL),
        ("resources.gpusPerNode", OPERATIONAL),
        ("data rows", None),
        ("model weights", None),
        ("rows of data.trainFiles", None),
        ("elsewhere.field", None),
    ],
)
def test_change_class_of_field(path: str, expected: ChangeClass | None) -> None:
    assert change_class(JobSpec, path) is expected
