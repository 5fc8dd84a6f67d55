"""Model folders made to exhaust memory, to hang or to read files elsewhere."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from support.builders.trainer.preflight import make_model_folder
from support.hostile.limited_process import Make, outcomes
from support.hostile.special_files import SECRET, SPECIAL_FILES

CONFIG, GENERATION, INDEX = "config.json", "generation_config.json", "model.safetensors.index.json"
TOKENIZER, WEIGHTS = "tokenizer_config.json", "a.safetensors"
VOCABULARY = "tokenizer.json"
LISTS = "[" + "[]," * 10_500_000 + "[]]"
"""A text of 31 MB whose values have 670 MB."""


def changed(file: str = CONFIG, **values: Any) -> Make:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def written(name: str, content: str | bytes) -> Make:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def index(shard: object) -> Make:
    return written(INDEX, json.dumps({"metadata": {}, "weight_map": {"a": shard}}))


def index_without(field: str, **changes: object) -> Make:
    """Return a function that removes a field from the index, or replaces it."""

    def write(folder: Path) -> None:
        fields = json.loads((folder / INDEX).read_text())
        del fields[field]
        (folder / INDEX).write_text(json.dumps(fields | changes))

    return write


def enlarged(name: str, size: int) -> Make:
    """Return a function that makes a sparse file, which takes no space on the disk."""

    def enlarge(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.truncate(size)

    return enlarge


def many_shards(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / "model-00001-of-999999999.safetensors").touch()


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor(description: str) -> Make:
    return written(WEIGHTS, header(f'{{"a": {description}}}'))


def special(name: str, make: Make) -> Make:
    def replace(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return replace


def single(description: str, name: str = "model.safetensors") -> Make:
    """Return a function that leaves one file of weights, with one tensor and no index."""

    def make(folder: Path) -> None:
        for each in folder.glob("*.safetensors*"):
            each.unlink()
        (folder / name).write_bytes(header(f'{{"a": {description}}}'))

    return make


def charsmap(text: str) -> Make:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": text}
    return changed(VOCABULARY, normalizer=normalizer)


CASES: dict[str, Make] = {
    "a billion layers": changed(num_hidden_layers=10**9),
    "layers without end": changed(num_hidden_layers=10**30),
    "negative layers": changed(num_hidden_layers=-1),
    "layers as text": changed(num_hidden_layers="12"),
    "layers as truth value": changed(num_hidden_layers=True),
    "layers as list": changed(num_hidden_layers=[[1]]),
    "heads as text": changed(num_key_value_heads="x" * 1000),
    "width of 2**40": changed(hidden_size=2**40),
    "vocabulary of 1e300": changed(vocab_size=1e300),
    "no context": changed(max_position_embeddings=0),
    "epsilon as text": changed(rms_norm_eps="x"),
    "epsilon that is NaN": changed(rms_norm_eps=math.nan),
    "negative rotary base": changed(rope_parameters={"rope_theta": -1}),
    "infinite rotary base": changed(rope_theta=math.inf),
    "nested layers": changed(text_config={"num_hidden_layers": 10**9}),
    "number beyond 2**53": changed(rope_theta=10**400),
    "end token as text": written(GENERATION, '{"eos_token_id": ["</s>"]}'),
    "end token as object": changed(eos_token_id={"a": 1}),
    "config: array": written(CONFIG, "[]"),
    "config: infinity": written(CONFIG, '{"num_hidden_layers": Infinity}'),
    "config: NaN": written(CONFIG, '{"hidden_size": NaN}'),
    "config: duplicate key": written(CONFIG, '{"vocab_size": 1, "vocab_size": 2}'),
    "config: many keys, the last one twice": written(
        CONFIG, "{" + "".join(f'"{i}":0,' for i in range(300_000)) + '"299999":0}'
    ),
    "config: deep": written(CONFIG, '{"a": ' * 100_000 + "1" + "}" * 100_000),
    "config: deep below the limit of Python": written(
        CONFIG, '{"a": ' * 200 + "1" + "}" * 200
    ),
    "config: not UTF-8": written(CONFIG, b'{"model_type": "\xff\xfe"}'),
    "config: UTF-16": written(CONFIG, '{"vocab_size": 1}'.encode("utf-16")),
    "config: many digits": written(CONFIG, '{"vocab_size": ' + "9" * 100_000 + "}"),
    "config: 1 GB": enlarged(CONFIG, 1 << 30),
    "generation config: 1 GB": enlarged(GENERATION, 1 << 30),
    "generation config: array": written(GENERATION, "[1]"),
    "tokenizer config: 1 GB": enlarged(TOKENIZER, 1 << 30),
    "tokenizer config: array": written(TOKENIZER, "[1]"),
    "tokenizer config: deep": written(TOKENIZER, "[" * 100_000),
    "tokenizer: 1 GB": enlarged("tokenizer.json", 1 << 30),
    "index: 1 GB": enlarged(INDEX, 1 << 30),
    "index: other folder": index("../../x.safetensors"),
    "index: absolute": index("/etc/passwd"),
    "index: numbers": index(1),
    "index: no metadata": index_without("metadata"),
    "index: metadata is text": index_without("metadata", metadata="x"),
    "index: no weight_map": index_without("weight_map"),
    "weights: a billion shards": many_shards,
    "weights: negative shape": tensor('{"shape": [-1], "data_offsets": [0, 0]}'),
    "weights: text as shape": tensor('{"shape": "ab", "data_offsets": [0, 0]}'),
    "weights: no offsets": tensor('{"shape": [1], "data_offsets": []}'),
    "weights: array": written(WEIGHTS, header("[1]")),
    "weights: deep": written(WEIGHTS, header("[" * 100_000)),
    "weights: duplicate tensor": written(WEIGHTS, header('{"a": {}, "a": {}}')),
    "weights: many dimensions": single(
        '{"shape": [' + ",".join([str(2**40)] * 100_000) + '], "data_offsets": [0, 0]}'
    ),
    "weights: 400 dimensions": single(
        '{"shape": [' + ",".join([str(2**40)] * 400) + '], "data_offsets": [0, 0]}'
    ),
    "weights: shape larger than the data": single(
        '{"dtype": "F16", "shape": [1099511627776], "data_offsets": [0, 0]}'
    ),
    "weights: empty lists": single(f'{{"shape": [], "data_offsets": [0, 0], "x": {LISTS}}}'),
    "index: empty lists": written(INDEX, f'{{"weight_map": {{}}, "x": {LISTS}}}'),
    "index: name of 300 characters": index("x" * 300),
    "index: lone surrogate": index("\ud800"),
    "index: NUL": index("a\0b"),
    "weights: long names of shards": single(
        '{"shape": [0], "data_offsets": [0, 0]}', "x" * 230 + "-1-of-1000.safetensors"
    ),
    "1,001 layers": changed(num_hidden_layers=1_001),
    "1,001 layers of an encoder": changed(encoder_layers=1_001),
    "a billion labels": changed(num_labels=10**9),
    "500,000 names of labels": changed(id2label={str(i): "a" for i in range(500_000)}),
    "2,001 heads": changed(num_attention_heads=2_001),
    "width of 2**31": changed(hidden_size=2**31),
    "tokenizer: panic": charsmap("AAAA"),
    "tokenizer: abort": charsmap("/////wAAAAAAAAAAAAAAAA=="),
    "tokenizer: empty lists": written(VOCABULARY, LISTS),
    "tokenizer: 200,000 extra tokens": changed(
        TOKENIZER, extra_special_tokens=[f"<{i}>" for i in range(200_000)]
    ),
    "vocabulary of empty lines": written("vocab.txt", "\n" * 3_000_000),
    "template of 2 MB": written("chat_template.jinja", " " * (2 << 20)),
    "weights: header of 2**64 bytes": written(WEIGHTS, b"\xff" * 8 + b"{}"),
    **{
        f"{file}: {name}": special(file, make)
        for file in (CONFIG, WEIGHTS, TOKENIZER, GENERATION, "vocab.txt", INDEX)
        for name, make in SPECIAL_FILES.items()
        if (file, name) not in ((GENERATION, "folder"), ("vocab.txt", "folder"))
    },
}  # fmt: skip


REASONS = {
    "index: no metadata": "has no valid metadata",
    "index: metadata is text": "has no valid metadata",
    "index: no weight_map": "has no valid weight_map",
    "index: numbers": "1 is not the name of a file in its folder",
    "index: absolute": "is not the name of a file in its folder",
    "index: NUL": "is not the name of a file in its folder",
    "index: empty lists": "it has too many values",
    "tokenizer: empty lists": "it has too many values",
    "tokenizer: panic": "its library crashes",
    "tokenizer: abort": "needs more than 1,024 MiB of memory: use the tokenizer of",
    "weights: shape larger than the data": "tensor 'a' has 0 bytes, which do not fit",
    "vocabulary of empty lines": "lines",
}
"""Reasons of rejections that other problems of a folder must not hide."""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcome of each case."""
    folders = {}
    for name, make in CASES.items():
        folders[name] = make_model_folder(tmp_path_factory.mktemp("case") / "model")
        make(folders[name])
    by_path = outcomes("model", list(folders.values()))
    return {name: by_path[str(folder)] for name, folder in folders.items()}


@pytest.mark.parametrize("name", CASES)
def test_hostile_model_is_rejected_within_limits(checked: dict[str, str], name: str) -> None:
    assert checked[name].startswith("rejected: "), checked[name][-1500:]
    assert "MemoryError" not in checked[name]
    assert SECRET not in checked[name]
    assert REASONS.get(name, "") in checked[name]


def test_snapshot_of_hub_cache_is_accepted(tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--name"
    folder = make_model_folder(repository / "snapshots" / "main")
    (repository / "blobs").mkdir()
    (folder / CONFIG).rename(repository / "blobs" / "5f1d")
    (folder / CONFIG).symlink_to("../../blobs/5f1d")

    [outcome] = outcomes("model", [folder], 16 << 30).values()

    assert "link" not in outcome
    assert outcome.startswith("accepted"), outcome
