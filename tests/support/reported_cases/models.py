"""Reported cases about models and tokenizers."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.processors import TemplateProcessing

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState, PreflightResult
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import compose
from raggrpo_trainer.data.tokenizer import load_tokenizer
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.policy.model import load_model
from raggrpo_trainer.preflight.run import run_checks
from support.builders.trainer.policies import write_model
from support.builders.trainer.preflight import check_of, make_fit_config
from support.reported_cases.case import case

BOS = "Ā"
"""A token of the byte tokenizer that no text contains."""
PLAIN = "{{ messages[-1].content }}"
TAGS = ("<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>")


def preflight(folder: Path, changes: dict[str, Any] | None = None) -> PreflightResult:
    return asyncio.run(run_checks(make_fit_config(folder, changes), {}))


def expect(result: PreflightResult, check: CheckId, state: CheckState, *words: str) -> None:
    """Assert a check's state and that its evidence contains all words."""
    observed = check_of(result, check)
    assert observed.state is state, observed.evidence
    assert [word for word in words if word not in observed.evidence] == [], observed.evidence


def change_tokenizer(model: Path, change: Callable[[RustTokenizer], None], **config: Any) -> None:
    """Change tokenizer.json and fields of tokenizer_config.json; None removes a field."""
    table = RustTokenizer.from_file(str(model / "tokenizer.json"))
    change(table)
    table.save(str(model / "tokenizer.json"))
    file = model / "tokenizer_config.json"
    fields = {**json.loads(file.read_text()), **config}
    file.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


def prepend_bos(table: RustTokenizer) -> None:
    number = table.token_to_id(BOS)
    table.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, number)])


def add(*tokens: str) -> Callable[[RustTokenizer], None]:
    return lambda table: table.add_special_tokens([AddedToken(each) for each in tokens]) and None


@case("M1", fault="The tokenizer's <bos> is lost", inputs=["", PLAIN, BOS + PLAIN])
def prompts_start_with_bos_once(folder: Path, template: str) -> None:
    """Plain text and text of the job's template start with <bos>, as the tokenizer adds it."""
    changes = {"data.chatTemplate": template}
    config = make_fit_config(folder, changes)
    change_tokenizer(folder / "model", prepend_bos, bos_token=BOS)
    tokenizer = load_tokenizer(str(folder / "model"))

    composed = compose(
        Prompt(0, "Who?", "Who?", (), ""),
        [],
        config.retrieval,
        tokenizer,
        max_prompt_length=64,
        allow_truncation=False,
        seed=0,
        chat_template=template,
    )

    expected = tokenizer("Who?", add_special_tokens=True)["input_ids"]
    assert list(composed.token_ids) == expected
    result = preflight(folder, changes)
    expect(result, CheckId.TOKENIZER, CheckState.PASSED, f"prompts start with {BOS}")
    assert result.facts.prompt_start == BOS


@case("M3", fault="A token has no row in the embedding", inputs=[["<search>"], ["<a>", "<b>"]])
def token_beyond_the_embedding_is_refused(folder: Path, tokens: Sequence[str]) -> None:
    make_fit_config(folder)
    change_tokenizer(folder / "model", add(*tokens))
    words = (repr(tokens[0]), "id 256", "embedding of 256 rows", "resize_token_embeddings")
    expect(preflight(folder), CheckId.TOKENIZER, CheckState.FAILED, *words)


@case("M4", fault="Nothing ends a completion")
def missing_end_token_is_reported(folder: Path) -> None:
    make_fit_config(folder)
    change_tokenizer(folder / "model", lambda _: None, eos_token=None)
    words = ("no eos_token", "completions end only at data.maxResponseLength")
    expect(preflight(folder), CheckId.TOKENIZER, CheckState.WARNED, *words)


@case("M4-folder", fault="Nothing ends a completion", inputs=["generation_config", "config"])
def end_token_of_model_folder_counts(folder: Path, name: str) -> None:
    make_fit_config(folder)
    change_tokenizer(folder / "model", lambda _: None, eos_token=None)
    file = folder / "model" / f"{name}.json"
    fields = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**fields, "eos_token_id": [7, 8]}))
    expect(preflight(folder), CheckId.TOKENIZER, CheckState.PASSED, "completions end with")


@case("M5", fault="The weights are not finite", inputs=[math.nan, math.inf, -math.inf])
def non_finite_weight_is_named(folder: Path, value: float) -> None:
    model = write_model(folder / "model")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(model / "model.safetensors")
    tensors[name][3, 2] = value
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    kind = "NaN" if math.isnan(value) else "infinity"
    with pytest.raises(TrainerError, match=f"weights contain {kind}: tensor {name}") as raised:
        load_model(str(model), None)
    assert raised.value.exit_code is ExitCode.PREFLIGHT_FAILED


@case("M6", fault="A file of the weights is missing")
def missing_shard_of_index_is_named(folder: Path) -> None:
    make_fit_config(folder)
    (folder / "model" / "b.safetensors").unlink()
    words = ("lacks b.safetensors", "model.safetensors.index.json", "download the model again")
    expect(preflight(folder), CheckId.MODEL_READABLE, CheckState.FAILED, *words)


@case("M6-name", fault="A file of the weights is missing")
def missing_shard_without_index_is_named(folder: Path) -> None:
    make_fit_config(folder)
    model = folder / "model"
    (model / "model.safetensors.index.json").unlink()
    (model / "a.safetensors").rename(model / "model-00001-of-00003.safetensors")
    (model / "b.safetensors").rename(model / "model-00003-of-00003.safetensors")
    words = ("lacks model-00002-of-00003.safetensors", "download the model again")
    expect(preflight(folder), CheckId.MODEL_READABLE, CheckState.FAILED, *words)
