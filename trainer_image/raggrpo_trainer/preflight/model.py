"""Check ModelReadable: the model folder's configuration, weights and tokenizer.

The facts come from config.json and the safetensors headers; must not read any tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raggrpo_api.trainer.preflight import CheckId, Facts
from raggrpo_trainer.data.prompts import Tokenizer, load_tokenizer

from .finding import Finding, finding_for
from .weights import (
    Shapes,
    Unreadable,
    count_parameters,
    missing_tensors,
    read_json,
    weight_shapes,
)

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Of generation_config.json. Requests give temperature and top_p themselves, and vLLM takes only
the end tokens from the file, so the others stay off in the engine as they are in the trainer."""


@dataclass(frozen=True, slots=True)
class Model:
    """What was found in the model folder."""

    finding: Finding
    facts: Facts
    tokenizer: Tokenizer | None
    """None if it cannot be loaded."""


def check_model(path: Path) -> Model:
    """Check everything, so that all problems are reported at once."""
    if not path.is_dir():
        problem = f"{path} is no folder: model.path names a Hugging Face model's folder"
        return Model(finding_for(CheckId.MODEL_READABLE, [problem], ""), Facts(), None)
    problems = []
    facts, config = Facts(), dict[str, Any]()
    try:
        config = read_json(path / "config.json")
        facts = _shape(path / "config.json", config)
    except Unreadable as error:
        problems.append(str(error))
    try:
        shapes = weight_shapes(path)
    except Unreadable as error:
        problems.append(str(error))
    else:
        facts = facts.model_copy(update={"parameters": count_parameters(shapes)})
        if config:
            problems += _untrainable(path, config, shapes)
    tokenizer = None
    try:
        tokenizer = load_folder_tokenizer(path)
    except Exception as error:  # tokenizers raise whatever they like
        problems.append(f"the tokenizer in {path} cannot be loaded: {error}")
    else:
        problems += _another_models(tokenizer, facts)
    ignored = ""
    try:
        ignored = _ignored_sampling(path / "generation_config.json")
    except Unreadable as error:
        problems.append(str(error))
    evidence = (
        f"{facts.parameters:,} parameters, {facts.layers} layers × {facts.hidden_size}, "
        f"context {facts.context_length}, tokenizer loads{ignored}"
    )
    return Model(finding_for(CheckId.MODEL_READABLE, problems, evidence), facts, tokenizer)


def _untrainable(path: Path, config: Mapping[str, Any], shapes: Shapes) -> Iterator[str]:
    """Yield why weights that can be read are not those of a whole model in full precision."""
    if quantisation := config.get("quantization_config"):
        kind = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
        yield (
            f"{path}/config.json says that the weights are quantised ({kind}), and those cannot "
            "be trained: give the model in full precision"
        )
    elif (path / "adapter_config.json").exists():
        yield f"{path} is an adapter: merge it into its model, and give the folder of the result"
    elif lacking := missing_tensors(config, shapes):
        named = f"{lacking[0]} and {len(lacking) - 1:,} more" if lacking[1:] else lacking[0]
        yield (
            f"{path} lacks {named}, which its config.json asks for: save the whole model with "
            "save_pretrained(), without a wrapper's prefix"
        )


def _another_models(tokenizer: Tokenizer, facts: Facts) -> Iterator[str]:
    known = getattr(tokenizer, "vocab_size", 0)  # without what was added, such as image tokens
    if 0 < facts.vocabulary < known:
        yield (
            f"the tokenizer has {known:,} tokens and the model {facts.vocabulary:,}: they do not "
            "belong together"
        )


def _ignored_sampling(path: Path) -> str:
    """Name the model's own sampling defaults; rollout.temperature and topP count instead."""
    config = read_json(path) if path.exists() else {}
    given = [f"{name} {config[name]}" for name in SAMPLING_DEFAULTS if config.get(name) is not None]
    if not given:
        return ""
    return f"; {path.name}'s {', '.join(given)} not used: rollout.temperature and topP count"


def _shape(path: Path, whole: Mapping[str, Any]) -> Facts:
    config = whole.get("text_config") or whole
    if not isinstance(config, dict):
        raise Unreadable(f"{path}: text_config is no JSON object")

    def number(*keys: str, default: int | None = None) -> int:
        value = next((config[key] for key in keys if config.get(key) is not None), default)
        if not isinstance(value, int) or value < 1:
            raise Unreadable(f"{path} has no {keys[0]}: it is not a causal language model's")
        return value

    heads = number("num_attention_heads", "n_head")
    hidden = number("hidden_size", "n_embd")
    return Facts(
        layers=number("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_size=number("head_dim", default=hidden // heads),
        mlp_size=_mlp_size(config, hidden),
        vocabulary=number("vocab_size"),
        context_length=number("max_position_embeddings", "n_positions"),
    )


def _mlp_size(config: Mapping[str, Any], hidden: int) -> int:
    """Return the units of the MLP that a token passes in a layer; 0 if they are not told.

    Of a mixture, those of the experts that it visits, its copies for them (as much memory as half
    the hidden units each) and of the experts that all tokens share.
    """

    def units(*keys: str) -> int:
        for key in keys:
            value = config.get(key)
            each = [x for x in (value if isinstance(value, list) else [value]) if type(x) is int]
            if max(each, default=0) > 0:
                return max(each)
        return 0

    dense = units("intermediate_size_mlp", "intermediate_size", "n_inner")
    visited = units("num_experts_per_tok", "num_experts_per_token", "moe_topk")
    if not visited:
        return dense
    one = units("moe_intermediate_size", "intermediate_size")
    shared = units("n_shared_experts", "num_shared_experts", "num_shared_expert") * one
    shared = shared or units("shared_expert_intermediate_size", "shared_intermediate_size")
    mixture = visited * (one + hidden // 2) + shared
    return max(mixture, units("intermediate_size_mlp"))


def load_folder_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a model's folder. Raises whatever tokenizers raise."""
    if not (path / "tokenizer.json").exists():
        return load_tokenizer(str(path))
    # Unlike AutoTokenizer, this avoids importing torch, which would take half of preflight's time.
    from transformers import PreTrainedTokenizerFast

    tokenizer: Tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    return tokenizer
