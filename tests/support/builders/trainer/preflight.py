"""Model folder (written without torch), data files and a configuration that pass preflight."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import Check, CheckId, PreflightResult
from raggrpo_trainer.preflight.weights import expected_tensors
from support.builders.data.rows import write_rows
from support.builders.trainer.reports import make_config

PARAMETERS = 256 * 8 + 3 * (2 * 8 * 32 * (4 + 2) + 3 * 8 * 16)
"""Number of parameters of the model of `make_model_folder`; its head is tied to the embedding."""


def make_model_folder(folder: Path, **config: Any) -> Path:
    """Write a model in two shards with a byte tokenizer."""
    folder.mkdir(parents=True)
    shape = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 16,
        "vocab_size": 256,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
    }
    (folder / "config.json").write_text(json.dumps({**shape, **config}))
    tensors = {n: np.zeros(size, np.float32) for n, size in expected_tensors(shape).items()}
    names = {name: f"{'ab'[place % 2]}.safetensors" for place, name in enumerate(tensors)}
    for file in ("a.safetensors", "b.safetensors"):
        save_file({n: tensors[n] for n, of in names.items() if of == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": names})
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    # Without a class, transformers would load the tokenizer of the model's type.
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": letters[-1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def make_fit_config(folder: Path, changes: Mapping[str, Any] | None = None) -> TrainerConfig:
    """Return a configuration whose model, data and checkpoint folder exist."""
    model, data = folder / "model", folder / "train.jsonl"
    if not model.exists():
        make_model_folder(model)
        write_rows(data, [{"prompt": f"question {n}", "answer": "A"} for n in range(20)])
    defaults = {
        "model.path": str(model),
        "data.trainFiles": [str(data)],
        "data.trainBatchSize": 4,
        "resources.device": "CPU",
    }
    return make_config(folder / "checkpoints", {**defaults, **(changes or {})})


def check_of(result: PreflightResult, check_id: CheckId) -> Check:
    [check] = [each for each in result.checks if each.id is check_id]
    return check
