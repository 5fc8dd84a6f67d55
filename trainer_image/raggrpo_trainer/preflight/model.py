"""Check ModelReadable: the model folder's configuration, weights and tokenizer.

Facts come from config.json and the safetensors headers. Must not read tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raggrpo_api.model_folder import UnsafeModel, adapter_problem, require_safe_files
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.trainer.preflight import CheckId, Facts
from raggrpo_trainer.data.file_format import LFS_POINTER, LFS_REMEDY, is_lfs_pointer
from raggrpo_trainer.data.tokenizer import Tokenizer
from raggrpo_trainer.data.tokenizer_process import load_own_tokenizer

from .finding import Finding, finding_for
from .weights import (
    Shapes,
    Unreadable,
    adapted_layers,
    count_parameters,
    embedding_rows,
    missing_tensors,
    read_json,
    weight_shapes,
)

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields of generation_config.json that both the engine and the trainer ignore.

Requests specify temperature and top_p, and vLLM reads only the end tokens from the file.
"""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""Files of tokenizers, which may be Git LFS pointers."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The finding, the facts about the model, its tokenizer and embedding."""

    finding: Finding
    facts: Facts
    tokenizer: Tokenizer | None
    """The tokenizer; None if it cannot be loaded."""
    embedding_rows: int
    """Number of rows of the embedding; 0 if unknown."""


def check_model(path: Path, lora: LoraSpec | None = None) -> ModelCheck:
    """Check the whole folder, so that all problems are reported at once."""
    if not path.is_dir():
        problem = f"{path} is not a folder: set model.path to the folder of a Hugging Face model"
        return _unreadable(problem)
    try:
        require_safe_files(path)
        adapter = adapter_problem(path)
    except UnsafeModel as error:
        return _unreadable(str(error))
    if adapter:  # other problems, such as a missing config.json, follow from it
        return _unreadable(adapter)
    problems = []
    facts = Facts()
    shapes: Shapes = {}
    config: dict[str, Any] = {}
    try:
        config = read_json(path / "config.json")
        facts = _facts(path / "config.json", config)
    except Unreadable as error:
        problems.append(str(error))
    try:
        shapes = weight_shapes(path)
    except Unreadable as error:
        problems += [str(error)] if str(error) not in problems else []
    else:
        adapted = adapted_layers(shapes, lora) if lora else []
        counts = {
            "parameters": count_parameters(shapes),
            "adapted_layers": len(adapted),
            "adapter_parameters_per_rank": sum(map(sum, adapted)),
        }
        facts = facts.model_copy(update=counts)
        if not problems:
            problems += _weight_problems(path, config, shapes)
    tokenizer = None
    try:
        tokenizer = load_own_tokenizer(path)
    except UnsafeModel as error:  # reported already if it is about config.json
        problems += [str(error)] if str(error) not in problems else []
    except Exception as error:  # tokenizers raise exceptions of any type
        problems.append(tokenizer_problem(path, error))
    note = ""
    try:
        note = _ignored_sampling(path / "generation_config.json")
    except Unreadable as error:
        problems.append(str(error))
    evidence = (
        f"{facts.parameters:,} parameters, {facts.layers} layers × {facts.hidden_size}, "
        f"context {facts.context_length}, tokenizer loaded{note}"
    )
    rows = embedding_rows(shapes) or facts.vocabulary
    return ModelCheck(
        finding_for(CheckId.MODEL_READABLE, problems, evidence), facts, tokenizer, rows
    )


def _unreadable(problem: str) -> ModelCheck:
    return ModelCheck(finding_for(CheckId.MODEL_READABLE, [problem], ""), Facts(), None, 0)


def tokenizer_problem(path: Path, error: Exception) -> str:
    """Return the problem of a folder whose tokenizer cannot be loaded."""
    files = (path / name for name in TOKENIZER_FILES)
    if pointers := [file for file in files if file.is_file() and is_lfs_pointer(file)]:
        return f"{pointers[0]} {LFS_POINTER}; {LFS_REMEDY}"
    return f"the tokenizer in {path} cannot be loaded ({error}): save it with save_pretrained()"


def _weight_problems(path: Path, config: Mapping[str, Any], shapes: Shapes) -> Iterator[str]:
    """Yield a problem if the weights are quantized or incomplete."""
    if quantization := config.get("quantization_config"):
        kind = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        yield (
            f"the weights in {path} are quantized ({kind}) and cannot be trained: use the model in "
            "full precision"
        )
    elif missing := missing_tensors(config, shapes):
        names = f"{missing[0]} and {len(missing) - 1:,} more" if missing[1:] else missing[0]
        yield (
            f"{path} lacks {names}, which config.json requires: save the whole model with "
            "save_pretrained(), without a wrapper's prefix in tensor names"
        )


def _ignored_sampling(path: Path) -> str:
    """Return a note on the sampling defaults in generation_config.json, which are not used."""
    config = read_json(path) if path.exists() else {}
    defaults = [
        f"{name} {config[name]}" for name in SAMPLING_DEFAULTS if config.get(name) is not None
    ]
    if not defaults:
        return ""
    source = f"defaults in {path.name} ({', '.join(defaults)})"
    return f"; {source} are not used, set rollout.temperature and topP"


def _facts(path: Path, whole: Mapping[str, Any]) -> Facts:
    config = whole.get("text_config") or whole
    if not isinstance(config, dict):
        raise Unreadable(f"{path}: text_config is not a JSON object")

    def number(*keys: str, default: int | None = None) -> int:
        value = next((config[key] for key in keys if config.get(key) is not None), default)
        if type(value) is not int or value < 1:
            raise Unreadable(f"{path} has no {keys[0]}: it is not a causal language model")
        return value

    heads = number("num_attention_heads", "n_head")
    hidden = number("hidden_size", "n_embd")
    values = dict(
        layers=number("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_size=number("head_dim", default=hidden // heads),
        mlp_size=_mlp_size(config, hidden),
        vocabulary=number("vocab_size"),
        context_length=number("max_position_embeddings", "n_positions"),
    )
    try:
        return Facts.model_validate(values)
    except ValidationError as error:
        [name, *_] = error.errors()[0]["loc"]
        raise Unreadable(f"{path}: {name} {values[str(name)]:,} is out of range") from error


def _mlp_size(config: Mapping[str, Any], hidden: int) -> int:
    """Return the number of MLP units per token and layer, or 0 if config.json does not specify it.

    For a mixture of experts, this is the sum of the units of the routed experts, of half the hidden
    size per routed expert for its copy of the token, and of the units of the shared experts.
    """

    def units(*keys: str) -> int:
        for key in keys:
            value = config.get(key)
            each = [x for x in (value if isinstance(value, list) else [value]) if type(x) is int]
            if max(each, default=0) > 0:
                return max(each)
        return 0

    dense = units("intermediate_size_mlp", "intermediate_size", "n_inner")
    routed = units("num_experts_per_tok", "num_experts_per_token", "moe_topk")
    if not routed:
        return dense
    expert = units("moe_intermediate_size", "intermediate_size")
    shared = units("n_shared_experts", "num_shared_experts", "num_shared_expert") * expert
    shared = shared or units("shared_expert_intermediate_size", "shared_intermediate_size")
    mixture = routed * (expert + hidden // 2) + shared
    return max(mixture, units("intermediate_size_mlp"))
