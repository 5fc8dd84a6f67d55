"""`resume_values`: the settings a checkpoint depends on, by field path.

Left out on purpose, because they do not change results: targets, intervals, logging, recovery,
memory mitigations, row layout, precision, and the addresses and limits of endpoints.
"""

from collections.abc import Mapping
from typing import Any, Final

from raggrpo_api.base import ApiModel
from raggrpo_api.job import JobSpec
from raggrpo_api.trainer_config import TrainerConfig

RESUME_FIELDS: Final[Mapping[str, str]] = {
    "model": "path",
    "data": "train_files columns train_batch_size max_samples max_prompt_length "
    "max_response_length allow_truncation system_prompt chat_template tools",
    "algorithm": "group_size clip_ratio_low clip_ratio_high kl_coefficient normalize_by_std "
    "loss_aggregation importance_cap",
    "rollout": "n temperature top_p",
    "training": "seed learning_rate warmup_steps weight_decay max_grad_norm mini_batch_prompts "
    "off_policy_steps",
    "retrieval": "mode prompt_template passage_template shuffle_passages max_passage_tokens "
    "max_turns actor_output on_failure",
    "reward": "answer_marker",
}
RESUME_ENDPOINT_FIELDS: Final = "name role protocol top_k score_threshold"
RESUME_REWARD_FIELDS: Final = "name weight python"
ADDED_LATER: Final = frozenset(
    {
        "data.systemPrompt",
        "data.chatTemplate",
        "data.tools",
        "data.columns.tools",
        "reward.answerMarker",
    }
)
"""Texts that older checkpoints do not know: an empty one counts as absent, as it does there."""


def resume_values(spec: JobSpec | TrainerConfig) -> dict[str, Any]:
    """Return every value a checkpoint depends on, by path: {"rollout.temperature": 1.0}.

    Training may resume from a checkpoint only if all of them are equal.
    """
    values: dict[str, Any] = {}
    for block, fields in RESUME_FIELDS.items():
        part = _part(getattr(spec, block), fields)
        values |= _known_to_all(part, block)
    values["retrieval.endpoints"] = [
        _part(e, RESUME_ENDPOINT_FIELDS) for e in spec.retrieval.endpoints
    ]
    values["reward.functions"] = [_part(f, RESUME_REWARD_FIELDS) for f in spec.reward.functions]
    return values


def _known_to_all(part: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return values by path, without those that older checkpoints lack and that change nothing."""
    values = {}
    for name, value in part.items():
        path = f"{place}.{name}"
        if path == "data.columns":
            value = {k: v for k, v in value.items() if v or f"{path}.{k}" not in ADDED_LATER}
        if value or path not in ADDED_LATER:
            values[path] = value
    return values


def _part(model: ApiModel, fields: str) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, include=set(fields.split()))
