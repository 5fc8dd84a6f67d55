"""Tokenizers made to exhaust memory or time when they are loaded or used."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.models.auto import tokenization_auto
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from raggrpo_api import tokenizer_trial
from raggrpo_api.model_folder import UnsafeModel
from raggrpo_api.python_tokenizers import CLASSES, MODEL_TYPES
from raggrpo_api.tokenizer_trial import TOKENIZER_FILE, require_loadable
from support.builders.trainer.preflight import make_model_folder

MODULES = ("raggrpo_trainer.data.tokenizer_process", "raggrpo_retriever.tokenizer_process")


def replacements(letter: str, *sizes: int) -> list[dict[str, Any]]:
    """Return rules that replace a letter, then the letters in its place, by so many letters."""
    letters = (letter, *"z" * len(sizes))
    return [
        {"type": "Replace", "pattern": {"String": old}, "content": "z" * size}
        for old, size in zip(letters, sizes, strict=False)
    ]


def normalizer(letter: str, *sizes: int) -> dict[str, Any]:
    rules = replacements(letter, *sizes)
    return {"normalizer": {"type": "Sequence", "normalizers": rules}}


def padding(**options: Any) -> dict[str, Any]:
    return {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    } | options


def suffix(tokens: int) -> dict[str, Any]:
    """Return a post-processor that adds tokens to each text."""
    special = {"id": "S", "ids": [1] * tokens, "tokens": ["a"] * tokens}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [sequence, {"SpecialToken": {"id": "S", "type_id": 0}}],
        "pair": [sequence],
        "special_tokens": {"S": special},
    }


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "fixed padding": (
        {"padding": padding(strategy={"Fixed": 100_000_000})},
        "pads texts to 100,000,000 tokens, more than 1,048,576: set padding to null in",
    ),
    "padding to a multiple": (
        {"padding": padding(pad_to_multiple_of=2**40)},
        "pads texts to 1,099,511,627,776 tokens, more than 1,048,576",
    ),
    "letter that becomes 16": (normalizer("q", 4, 4), ""),
    "letter of the run that becomes 16": (
        normalizer("a", 4, 4),
        "tokens: use the tokenizer of the original model",
    ),
    "word outside of the sample that becomes 1,600 letters": (
        normalizer("question", 1600),
        "has a normalizer with rules that write more than 160 characters for a character: use the",
    ),
    "decoder of the same": (
        {"decoder": {"type": "Sequence", "decoders": replacements("question", 1600)}},
        "has a decoder with rules that write more than 160 characters for a character: use the",
    ),
    "100 rules": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}] * 100}},
        "has a normalizer with more than 64 rules: use the tokenizer of",
    ),
    "bytes of bytes": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 26}},
        "has a normalizer with 26 rules ByteLevel (limit 1): use the tokenizer of",
    ),
    "bytes of bytes in words": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES, BYTES]}},
        "has a pre_tokenizer with 2 rules ByteLevel (limit 1): use the tokenizer of",
    ),
    "template with the text twice": (
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
                "pair": [],
                "special_tokens": {},
            }
        },
        "has a post_processor with a template that repeats the tokens of a text (single): use",
    ),
    "text without tokens": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "[\\s\\S]+"}, "content": ""}},
        "makes no tokens of a sample text: use the tokenizer of the original model",
    ),
    "tokens that are added to each text": (
        {"post_processor": suffix(20_000)},
        "expands 1,140 characters to 21,",
    ),
    "token whose text becomes 16 letters": (
        {"decoder": {"type": "Sequence", "decoders": replacements("a", 4, 4)}},
        "expands 1,140 characters to 16,174 characters",
    ),
    "multiple of zero": ({"padding": padding(pad_to_multiple_of=0)}, ""),
    "fixed padding of 512": ({"padding": padding(strategy={"Fixed": 512})}, ""),
}


def problem_of(folder: Path, module: str) -> str:
    try:
        require_loadable(folder, module)
    except UnsafeModel as error:
        return str(error)
    return ""


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", CASES)
def test_tokenizer_trial_rejects_expansion(tmp_path: Path, name: str, module: str) -> None:
    changes, reason = CASES[name]
    folder = make_model_folder(tmp_path / "model")
    file = folder / TOKENIZER_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    problem = problem_of(folder, module)

    assert reason in problem
    assert problem.startswith(f"the tokenizer in {folder} ") == bool(reason)


def test_tokenizer_trial_limits_cpu_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the place of the library loads a tokenizer without end."""
    (tmp_path / "endless_tokenizer.py").write_text(
        "from raggrpo_api import tokenizer_trial\n"
        "def read(path):\n"
        "    while True: pass\n"
        "tokenizer_trial.MAX_CPU_SECONDS = 1\n"
        "tokenizer_trial.run_trial(read, None)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(tokenizer_trial, "MAX_CPU_SECONDS", 1)

    problem = problem_of(make_model_folder(tmp_path / "model"), "endless_tokenizer")

    assert "is not loaded after 1 seconds of CPU time: use the tokenizer of" in problem


def test_tokenizer_trial_limits_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small_memory.py").write_text(
        "from tokenizers import Tokenizer\n"
        "from raggrpo_api import tokenizer_trial\n"
        "tokenizer_trial.MAX_MEMORY = 24 << 20\n"
        "tokenizer_trial.run_trial(Tokenizer.from_file, None)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    folder = make_model_folder(tmp_path / "model")
    file = folder / TOKENIZER_FILE
    rules = json.loads(file.read_text()) | {"post_processor": suffix(1_000_000)}
    file.write_text(json.dumps(rules))

    problem = problem_of(folder, "small_memory")

    assert "needs more than 1,024 MiB of memory: use the tokenizer of the original" in problem


def test_tokenizer_trial_accepts_vocabulary_of_250_000_tokens(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    vocabulary = [(chr(97 + i % 26) + format(i, "x"), -float(i % 15)) for i in range(250_000)]
    Tokenizer(models.Unigram(vocabulary, unk_id=0)).save(str(folder / TOKENIZER_FILE))

    assert problem_of(folder, MODULES[0]) == ""


def unigram(length: int) -> Tokenizer:
    """Return a tokenizer with nested words, the longest of `length` letters."""
    words = ["<unk>", *("b" * size for size in range(1, length + 1))]
    return Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=0))


def word_piece(length: int) -> Tokenizer:
    vocabulary = {"[UNK]": 0, "a": 1, "##a": 2}
    return Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=length)
    )


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("make", [unigram, word_piece])
def test_tokenizer_with_long_words_is_rejected(
    tmp_path: Path, make: Callable[[int], Tokenizer], module: str
) -> None:
    folder = make_model_folder(tmp_path / "model")
    make(256).save(str(folder / TOKENIZER_FILE))
    assert problem_of(folder, module) == ""

    make(257).save(str(folder / TOKENIZER_FILE))
    assert "has words of 257 characters, more than 256: use" in problem_of(folder, module)


def affix_tokenizer(kind: str, name: str, length: int) -> Tokenizer:
    if kind == "WordPiece":
        vocabulary = {"[UNK]": 0, "a": 1}
        return Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", **{name: "x" * length}))
    return Tokenizer(
        models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", **{name: "x" * length})
    )


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("BPE", "continuing_subword_prefix"),
        ("BPE", "end_of_word_suffix"),
        ("WordPiece", "continuing_subword_prefix"),
    ],
)
def test_tokenizer_with_long_affix_is_rejected(
    tmp_path: Path, kind: str, name: str, module: str
) -> None:
    folder = make_model_folder(tmp_path / "model")
    affix_tokenizer(kind, name, 64).save(str(folder / TOKENIZER_FILE))
    assert problem_of(folder, module) == ""

    affix_tokenizer(kind, name, 65).save(str(folder / TOKENIZER_FILE))
    assert f"has {name} of 65 characters, more than 64: use the" in problem_of(folder, module)


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ("config.json", {"model_type": "ctrl"}),
        ("config.json", {"tokenizer_class": "CTRLTokenizer"}),
        ("tokenizer_config.json", {"tokenizer_class": "CTRLTokenizerFast"}),
    ],
)
def test_trial_loads_files_that_transformers_reads_instead_of_tokenizer_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, setting: dict[str, str]
) -> None:
    folder = make_model_folder(tmp_path / "model")
    (folder / file).write_text(json.dumps(setting))
    monkeypatch.setattr(sys, "argv", ["trial", str(folder)])
    loaded: list[Path] = []

    def import_loader() -> Any:
        def load(folder: Path) -> Any:
            loaded.append(folder)
            return lambda _: ([1], "a")

        return load

    monkeypatch.setattr(tokenizer_trial, "limit_resources", lambda *_: None)
    tokenizer_trial.run_trial(Tokenizer.from_file, import_loader)

    assert loaded == [folder]


def test_tokenizers_in_python_are_those_of_transformers() -> None:
    mapping = tokenization_auto.TOKENIZER_MAPPING_NAMES
    classes = {name: tokenizer_class_from_name(name) for name in mapping.values() if name}
    in_python = {
        name for name, each in classes.items() if not issubclass(each, PreTrainedTokenizerFast)
    }
    assert in_python == CLASSES
    assert {kind for kind, name in mapping.items() if name in in_python} == MODEL_TYPES
