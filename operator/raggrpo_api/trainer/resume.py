"""`resume_values`: the fields that a checkpoint depends on, and their changes.

These are all fields of class Model or Optimization. Fields of class Operational do not change
results: targets, intervals, logging, recovery, memory mitigations, row layout, precision, paths,
and addresses, headers and limits of services. The trainer compares the content of files instead of
their paths.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Final, NamedTuple

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import (
    MODEL,
    OPTIMIZATION,
    ChangeClass,
    change_class,
    fields_of_class,
)
from raggrpo_api.secrets.redaction import redacted
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.spec.algorithm import AlgorithmSpec
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.retrieval import RetrievalEndpoint, RetrievalSpec
from raggrpo_api.spec.reward import JudgeSpec, RewardFunction, RewardSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.start_from import DataStart, StartFrom
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.trainer.config import TrainerConfig

BLOCKS: Final[Mapping[str, type[ApiModel]]] = {
    "data": DataSpec,
    "algorithm": AlgorithmSpec,
    "rollout": RolloutSpec,
    "rollout.agent": AgentSpec,
    "training": TrainingSpec,
    "retrieval": RetrievalSpec,
    "reward": RewardSpec,
}
"""Blocks of the spec with fields that a checkpoint depends on; the block of agents is optional."""
LISTS: Final = frozenset({"endpoints", "functions"})
"""Lists in these blocks; their items are compared field by field."""
FREE_JSON_FIELDS: Final = frozenset({"extra_body", "body", "request"})
"""Fields with arbitrary JSON that is sent to services; stored with secrets redacted."""
ALWAYS_STORED: Final = frozenset(
    {"name", "role", "protocol", "top_k", "score_threshold", "weight", "python"}
)
"""Fields of list items that all checkpoints have; other fields are stored unless default."""
ADDED_LATER: Final = frozenset(
    {
        "data.systemPrompt",
        "data.chatTemplate",
        "data.tools",
        "data.columns.tools",
        "reward.answerMarker",
        "algorithm.dualClip",
        "training.lora",
        "training.learningRateSchedule",
        "training.decaySteps",
        "training.minLearningRateRatio",
    }
)
"""Fields that older checkpoints lack; a default value of such a field counts as absent."""
EQUAL_VALUES: Final = {
    "algorithm.groupSize": "rollout.n",
    "training.miniBatchPrompts": "data.trainBatchSize",
}
"""Field → field whose value it has unless both are specified."""
DATA_ORDER: Final = (
    "rows of data.trainFiles",
    "data.maxSamples",
    "training.seed",
    "data rows",
)
"""Values that determine the order of the rows, to which a data position belongs."""
_UNSET: Final = object()
_SHOWN: Final = 120
"""Maximum characters of a value in a difference."""
_BEFORE: Final = 20
"""Characters shown before the first difference."""


class Change(NamedTuple):
    """A changed value, written "rollout.temperature: 0.6 → 1.0"."""

    path: str
    """Path below `spec`, or the name of an input such as `data rows`."""
    values: str
    """Old and new value as JSON, shortened: "0.6 → 1.0"."""

    def __str__(self) -> str:
        return f"{self.path}: {self.values}"

    @property
    def change_class(self) -> ChangeClass:
        """The class of the field; Model for inputs that are not fields."""
        return change_class(JobSpec, self.path) or MODEL


def resume_values(spec: JobSpec | TrainerConfig) -> dict[str, Any]:
    """Return the values that a checkpoint depends on, by path: {"rollout.temperature": 1.0}."""
    values: dict[str, Any] = {}
    for block in BLOCKS:
        if (model := attrgetter(block)(spec)) is not None:
            values |= _values_by_path(model, block)
    values["retrieval.endpoints"] = [_item_values(e) for e in spec.retrieval.endpoints]
    values["reward.functions"] = [_reward_values(f) for f in spec.reward.functions]
    return values


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return the differences between two results of `resume_values`."""
    return list(_changes("", old, new))


def incompatible(differences: Iterable[Change], start: StartFrom | None = None) -> list[Change]:
    """Return the changes that a checkpoint is not compatible with: those of class Model.

    With `start`, the checkpoint is that of another job: reward, retrieval and templates may differ,
    and also the data unless it continues.
    """
    rejected = [change for change in differences if change.change_class is MODEL]
    if start is None:
        return rejected
    of_data = () if start.data is DataStart.RESTART else DATA_ORDER
    fixed = ("model", "training.lora", *of_data)
    return [change for change in rejected if change.path.startswith(fixed)]


def without_derived(differences: Sequence[Change]) -> list[Change]:
    """Return the changes without those of values that equal another changed value."""
    values = {change.path: change.values for change in differences}
    return [
        change
        for change in differences
        if values.get(EQUAL_VALUES.get(change.path, "")) != change.values
    ]


def _reward_values(function: RewardFunction) -> dict[str, Any]:
    judge = function.judge
    values = _item_values(function, frozenset({"judge"}))
    return values | ({"judge": _item_values(judge)} if judge is not None else {})


def _item_values(
    item: RetrievalEndpoint | RewardFunction | JudgeSpec, without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    names = _compared_fields(type(item)) - without
    free: dict[str, Any] = redacted(_used(item, names & FREE_JSON_FIELDS))
    return _dumped(item, names & ALWAYS_STORED) | _used(item, names - FREE_JSON_FIELDS) | free


def _compared_fields(model: type[ApiModel]) -> frozenset[str]:
    return frozenset(fields_of_class(model, MODEL, OPTIMIZATION))


def _values_by_path(model: ApiModel, place: str) -> dict[str, Any]:
    """Return values by path, without defaults of fields in ADDED_LATER."""
    values = {}
    names = _compared_fields(type(model)) - LISTS
    used = _used(model, names)
    free: dict[str, Any] = redacted(_dumped(model, names & FREE_JSON_FIELDS))
    for name, value in (_dumped(model, names) | free).items():
        path = f"{place}.{name}"
        if path == "data.columns":
            value = {k: v for k, v in value.items() if v or f"{path}.{k}" not in ADDED_LATER}
        if name in used or path not in ADDED_LATER:
            values[path] = value
    return values


def _dumped(model: ApiModel, names: frozenset[str]) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, include=set(names))


def _used(model: ApiModel, names: frozenset[str]) -> dict[str, Any]:
    """Return the fields that differ from their defaults; older checkpoints may lack them."""
    return model.model_dump(mode="json", by_alias=True, include=set(names), exclude_defaults=True)


def _changes(place: str, old: Any, new: Any) -> Iterator[Change]:
    match old, new:
        case dict(), dict():
            for key in sorted(old.keys() | new.keys()):
                inner = f"{place}.{key}" if place else key
                yield from _changes(inner, old.get(key, _UNSET), new.get(key, _UNSET))
        case list(), list() if len(old) == len(new):
            for index, (before, after) in enumerate(zip(old, new, strict=True)):
                yield from _changes(f"{place}[{index}]", before, after)
        case _ if old != new:
            yield Change(place, " → ".join(_shown(old, new)))


def _shown(old: Any, new: Any) -> list[str]:
    """Return two values as JSON; long values are cut to the text around their first difference."""
    texts = ["(unset)" if v is _UNSET else json.dumps(v, ensure_ascii=False) for v in (old, new)]
    if max(map(len, texts)) <= _SHOWN:
        return texts
    differing = next(i for i, (a, b) in enumerate(zip_longest(*texts)) if a != b)
    return [_cut(text, max(0, differing - _BEFORE)) for text in texts]


def _cut(text: str, start: int) -> str:
    cut = text[start : start + _SHOWN - 3]
    return "..." * (start > 0) + cut + "..." * (start + len(cut) < len(text))
