"""`resume_values`: the fields that a checkpoint depends on.

Excludes fields that do not change results: targets, intervals, logging, recovery, memory
mitigations, row layout, precision, and addresses, headers and limits of services.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, Final

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.redaction import redacted
from raggrpo_api.spec.retrieval import RetrievalEndpoint
from raggrpo_api.spec.reward import RewardFunction
from raggrpo_api.trainer.config import TrainerConfig

RESUME_FIELDS: Final[Mapping[str, str]] = {
    "model": "path",
    "data": "train_files columns train_batch_size max_samples max_prompt_length "
    "max_response_length allow_truncation system_prompt chat_template tools",
    "algorithm": "group_size clip_ratio_low clip_ratio_high kl_coefficient normalize_by_std "
    "loss_aggregation importance_cap dual_clip",
    "rollout": "n temperature top_p",
    "training": "seed learning_rate warmup_steps learning_rate_schedule decay_steps "
    "min_learning_rate_ratio weight_decay max_grad_norm mini_batch_prompts off_policy_steps",
    "retrieval": "mode prompt_template passage_template shuffle_passages max_passage_tokens "
    "max_turns actor_output on_failure",
    "reward": "answer_marker",
}
RESUME_ENDPOINT_FIELDS: Final = "name role protocol top_k score_threshold"
RESUME_CALL_FIELDS: Final = "method response"
RESUME_REWARD_FIELDS: Final = "name weight python"
RESUME_JUDGE_FIELDS: Final = (
    "model prompt system score_pattern score_path lowest highest temperature max_tokens"
)
FREE_JSON_FIELDS: Final = "extra_body body"
"""Fields with arbitrary JSON that is sent to services; stored with secrets redacted."""
ADDED_LATER: Final = frozenset(
    {
        "data.systemPrompt",
        "data.chatTemplate",
        "data.tools",
        "data.columns.tools",
        "reward.answerMarker",
        "algorithm.dualClip",
        "training.learningRateSchedule",
        "training.decaySteps",
        "training.minLearningRateRatio",
    }
)
"""Fields that older checkpoints lack; a default value of such a field counts as absent."""
_UNSET: Final = object()
_SHOWN: Final = 120
"""Maximum characters of a value in a difference."""
_BEFORE: Final = 20
"""Characters shown before the first difference."""


def resume_values(spec: JobSpec | TrainerConfig) -> dict[str, Any]:
    """Return the values that a checkpoint depends on, by path: {"rollout.temperature": 1.0}.

    Training resumes from a checkpoint only if all of them are equal.
    """
    values: dict[str, Any] = {}
    for block, fields in RESUME_FIELDS.items():
        values |= _values_by_path(getattr(spec, block), fields, block)
    values["retrieval.endpoints"] = [_endpoint_values(e) for e in spec.retrieval.endpoints]
    values["reward.functions"] = [_reward_values(f) for f in spec.reward.functions]
    return values


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the differences of two sets of values, such as "rollout.temperature: 0.6 → 1.0"."""
    return list(_changes("", old, new))


def _endpoint_values(endpoint: RetrievalEndpoint) -> dict[str, Any]:
    called = _used(endpoint, RESUME_CALL_FIELDS) | _free_json(endpoint)
    return _dumped(endpoint, RESUME_ENDPOINT_FIELDS) | called


def _reward_values(function: RewardFunction) -> dict[str, Any]:
    values, judge = _dumped(function, RESUME_REWARD_FIELDS), function.judge
    if judge is not None:
        values["judge"] = _used(judge, RESUME_JUDGE_FIELDS) | _free_json(judge)
    return values


def _values_by_path(model: ApiModel, fields: str, place: str) -> dict[str, Any]:
    """Return values by path, without defaults of fields in ADDED_LATER."""
    values = {}
    used = _used(model, fields)
    for name, value in _dumped(model, fields).items():
        path = f"{place}.{name}"
        if path == "data.columns":
            value = {k: v for k, v in value.items() if v or f"{path}.{k}" not in ADDED_LATER}
        if name in used or path not in ADDED_LATER:
            values[path] = value
    return values


def _dumped(model: ApiModel, fields: str) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, include=set(fields.split()))


def _used(model: ApiModel, fields: str) -> dict[str, Any]:
    """Return the fields that differ from their defaults; older checkpoints may lack them."""
    names = set(fields.split())
    return model.model_dump(mode="json", by_alias=True, include=names, exclude_defaults=True)


def _free_json(model: ApiModel) -> dict[str, Any]:
    values: dict[str, Any] = redacted(_used(model, FREE_JSON_FIELDS))
    return values


def _changes(place: str, old: Any, new: Any) -> Iterator[str]:
    match old, new:
        case dict(), dict():
            for key in sorted(old.keys() | new.keys()):
                inner = f"{place}.{key}" if place else key
                yield from _changes(inner, old.get(key, _UNSET), new.get(key, _UNSET))
        case list(), list() if len(old) == len(new):
            for index, (before, after) in enumerate(zip(old, new, strict=True)):
                yield from _changes(f"{place}[{index}]", before, after)
        case _ if old != new:
            yield f"{place}: {' → '.join(_shown(old, new))}"


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
