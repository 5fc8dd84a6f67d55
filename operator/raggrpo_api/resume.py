"""What a checkpoint depends on: the values that must be equal for a run to be resumed (B20)."""

from typing import Any

from .algorithm import AlgorithmSpec
from .base import ApiModel
from .job import JobSpec
from .trainer_config import TrainerConfig

_FIELDS: dict[str, tuple[str, ...]] = {
    "model": ("path",),
    "data": (
        "train_files",
        "columns",
        "train_batch_size",
        "max_samples",
        "max_prompt_length",
        "max_response_length",
        "allow_truncation",
    ),
    "algorithm": tuple(AlgorithmSpec.model_fields),
    "rollout": ("n", "temperature", "top_p"),
    "training": (
        "seed",
        "learning_rate",
        "warmup_steps",
        "weight_decay",
        "max_grad_norm",
        "mini_batch_prompts",
        "off_policy_steps",
    ),
    "retrieval": (
        "mode",
        "prompt_template",
        "passage_template",
        "shuffle_passages",
        "max_passage_tokens",
        "max_turns",
        "actor_output",
        "on_failure",
    ),
}
_ENDPOINT_FIELDS = ("name", "role", "protocol", "top_k", "score_threshold")
_REWARD_FIELDS = ("name", "weight", "python")


def resume_values(spec: JobSpec | TrainerConfig) -> dict[str, Any]:
    """Return model, data and its order, objective and optimiser, by field path.

    Left out on purpose, since they change no result: targets, intervals, logging, recovery,
    memory mitigations, row layout, precision, endpoints' addresses and limits.
    """
    values: dict[str, Any] = {}
    for block, names in _FIELDS.items():
        values |= _part(getattr(spec, block), names, block)
    for i, endpoint in enumerate(spec.retrieval.endpoints):
        values |= _part(endpoint, _ENDPOINT_FIELDS, f"retrieval.endpoints[{i}]")
    for i, function in enumerate(spec.reward.functions):
        values |= _part(function, _REWARD_FIELDS, f"reward.functions[{i}]")
    return values


def _part(model: ApiModel, names: tuple[str, ...], prefix: str) -> dict[str, Any]:
    dumped = model.model_dump(mode="json", by_alias=True, include=set(names))
    return {f"{prefix}.{name}": value for name, value in dumped.items()}
