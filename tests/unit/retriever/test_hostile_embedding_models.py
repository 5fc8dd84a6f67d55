"""Embedding models and indexes made to exhaust memory, to hang or to raise unexpected errors."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.model_folder import loaded_files
from raggrpo_api.spec.retrieval import EmbeddingModel
from raggrpo_retriever import embedding
from raggrpo_retriever.corpus import CorpusError
from raggrpo_retriever.embedding import Embedder
from support.builders.trainer.embedding_model import write_embedding_model
from support.hostile.limited_process import Make, outcomes

MEMORY = 6 << 30
"""Address space in bytes; torch alone reserves several gigabytes."""


def changed(file: str = "config.json", **values: Any) -> Make:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def charsmap(text: str) -> Make:
    return changed(
        "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": text}
    )


def token(text: str, number: int) -> Make:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        content["model"]["vocab"][text] = number
        path.write_text(json.dumps(content))

    return change


def special_token(number: int) -> Make:
    """Return a function that changes a token which the tokenizer adds to each text."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [number]
        path.write_text(json.dumps(content))

    return change


def adapter(folder: Path) -> None:
    """Make the folder an adapter of a model elsewhere."""
    (folder / "model.safetensors").unlink()
    model_with_adapter(folder)


def model_with_adapter(folder: Path) -> None:
    other = write_embedding_model(folder.parent / "elsewhere", ["a", "b"], context=64)
    values = {"base_model_name_or_path": str(other), "peft_type": "LORA", "r": 1}
    (folder / "adapter_config.json").write_text(json.dumps(values))


CASES: dict[str, Make] = {
    "adapter": adapter,
    "model with adapter": model_with_adapter,
    "backbone": changed(model_type="detr", backbone="resnet50", use_pretrained_backbone=True),
    "nested backbone": changed(vision_config={"model_type": "dpt", "backbone": "resnet50"}),
    "kernels of the Hub": changed(attn_implementation="someone/kernels"),
    "other kernels of the Hub": changed(_experts_implementation="someone/kernels"),
    "compiled code": changed(attn_implementation={"": "flex_attention"}),
    "no heads": changed(num_attention_heads=0),
    "no width": changed(hidden_size=0),
    "no vocabulary": changed(vocab_size=0),
    "dropout as text": changed(hidden_dropout_prob="x"),
    "epsilon as list": changed(layer_norm_eps=[1]),
    "padding beyond the vocabulary": changed(pad_token_id=10**6),
    "type of another module": changed(dtype="system", torch_dtype="os"),
    "quantization as list": changed(quantization_config=[1]),
    "100 million labels": changed(num_labels=10**8),
    "10,000 layers": changed(num_hidden_layers=10_000),
    "3,000 groups of layers": changed(model_type="albert", num_hidden_groups=3_000),
    "2,000 layers in groups": changed(
        model_type="albert",
        num_hidden_groups=1_000,
        inner_group_num=2,
        hidden_size=8,
        num_attention_heads=1,
    ),
    "attention types without end": changed(
        model_type="gpt_neo",
        num_layers=2,
        attention_types=[[["global"] * 1000, 2**40]],
        classifier_dropout=0.1,
    ),
    "parameters of 30 GB": changed(vocab_size=10**9),
    "unknown activation": changed(hidden_act="os.system"),
    "tokenizer that panics": charsmap("AAAA"),
    "tokenizer that aborts": charsmap("/////wAAAAAAAAAAAAAAAA=="),
    **{
        f"context of {value!r}": changed("tokenizer_config.json", model_max_length=value)
        for value in (0, 0.5, 1, 2, -5, True, math.nan, -math.inf)
    },
    **{
        f"context as {name}": changed("tokenizer_config.json", model_max_length=value)
        for name, value in {"text": "64", "list": [64], "nothing": {}}.items()
    },
    "token beyond the embedding": token("b", 10**6),
    "token of special text beyond the embedding": special_token(10**6),
}
REASONS = {
    "adapter": "is an adapter: merge it",
    "model with adapter": "or remove adapter_config.json to use the model without it",
    "backbone": "config.json: backbone is 'resnet50', but",
    "nested backbone": "config.json: vision_config.backbone is 'resnet50', but",
    "kernels of the Hub": "attn_implementation is 'someone/kernels', which",
    "other kernels of the Hub": "_experts_implementation is 'someone/kernels', which",
    "compiled code": "attn_implementation is {'': 'flex_attention'}, which",
    "3,000 groups of layers": "config.json: num_hidden_groups is 3000, more than 1,000",
    "2,000 layers in groups": "config.json specifies a model of more than 20,000 tensors: copy",
    "attention types without end": "needs more than 512 MiB of memory while it builds",
    "tokenizer that panics": "its library crashes",
    "tokenizer that aborts": "needs more than 1,024 MiB of memory: use the tokenizer of",
    **{name: "tokenizer_config.json: model_max_length is" for name in CASES if "context" in name},
    **{name: "tokenizer.json: token 1,000,000 is beyond" for name in CASES if "token " in name},
}
"""Files and fields that messages name."""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcome of each case, and of a model without change."""
    folders = {}
    for name, make in {"none": lambda _: None, **CASES}.items():
        folders[name] = write_embedding_model(
            tmp_path_factory.mktemp("case") / "model", ["a", "b"], context=64
        )
        make(folders[name])
    by_path = outcomes("embedding", list(folders.values()), MEMORY)
    return {name: by_path[str(folder)] for name, folder in folders.items()}


@pytest.mark.parametrize("name", CASES)
def test_hostile_embedding_model_is_rejected_within_limits(
    checked: dict[str, str], name: str
) -> None:
    assert checked[name].startswith("rejected: "), checked[name][-1500:]
    assert "alloc" not in checked[name]
    assert REASONS.get(name, "") in checked[name]


def test_passage_of_many_megabytes_is_embedded(checked: dict[str, str]) -> None:
    assert checked["none"].startswith("vectors (2, "), checked["none"][-1500:]


def test_config_that_transformers_reads_without_end_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_embedding_model(tmp_path / "model", ["a", "b"], context=64)
    changed(model_type="cohere2_moe", first_k_dense_replace=2**40)(folder)
    monkeypatch.setattr(embedding, "MAX_CPU_SECONDS", 2)

    with pytest.raises(
        CorpusError, match=r"config\.json: transformers takes more than 2 seconds of"
    ):
        Embedder(EmbeddingModel(path=str(folder)))


def test_files_that_no_library_loads_are_not_hashed(tmp_path: Path) -> None:
    folder = write_embedding_model(tmp_path / "model", ["a"], context=64)
    names = {path.name for path in loaded_files(folder)}
    for name in ("x.bin", "pytorch_model.bin", "other.safetensors"):
        (folder / name).touch()
        os.truncate(folder / name, 50 << 30)

    assert {path.name for path in loaded_files(folder)} == names
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
