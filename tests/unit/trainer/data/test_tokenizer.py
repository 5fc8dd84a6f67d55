import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from raggrpo_trainer.data.tokenizer import (
    Tokenizer,
    completion_text,
    end_token_ids,
    leading_tokens,
    prompt_ids,
    token_ids,
)
from support.builders.trainer.gateway_models import byte_tokenizer, ids_of, spaced_tokenizer

BOS, EOS, PAD, TAG = "<bos>", "<eos>", "<pad>", "<answer>"
OWN_TEMPLATE = "{{ messages[-1].content }}"


def make_tokenizer(around: str = f"{BOS} $A", **options: Any) -> Tokenizer:
    """Return a byte tokenizer whose post-processor adds special tokens around texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = RustTokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table.decoder = decoders.ByteLevel()
    table.add_special_tokens([AddedToken(each) for each in (BOS, EOS, PAD, TAG)])
    if around:
        numbers = [(each, table.token_to_id(each)) for each in (BOS, EOS)]
        table.post_processor = TemplateProcessing(single=around, special_tokens=numbers)
    tokens = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    tokenizer: Tokenizer = PreTrainedTokenizerFast(tokenizer_object=table, **tokens | options)
    return tokenizer


@pytest.mark.parametrize(
    ("around", "expected"),
    [("", ""), (f"{BOS} $A", BOS), (f"{BOS} $A {EOS}", BOS), (f"$A {EOS}", "")],
)
def test_leading_tokens_exclude_tokens_after_text(around: str, expected: str) -> None:
    tokenizer = make_tokenizer(around)
    assert leading_tokens(tokenizer) == token_ids(expected, tokenizer)


@pytest.mark.row("D17")
@pytest.mark.parametrize(
    ("own", "job", "text", "expected"),
    [
        (None, "", "Who?", f"{BOS}Who?"),
        (None, "", f"{BOS}Who?", f"{BOS}Who?"),
        (None, "{{ … }}", "Who?", f"{BOS}Who?"),
        (OWN_TEMPLATE, "", "Who?", "Who?"),
        (OWN_TEMPLATE, "{{ … }}", "Who?", f"{BOS}Who?"),
    ],
)
def test_prompt_starts_with_bos_once_unless_own_template_writes_it(
    own: str | None, job: str, text: str, expected: str
) -> None:
    tokenizer = make_tokenizer(chat_template=own)
    assert prompt_ids(text, tokenizer, job) == token_ids(expected, tokenizer)


@pytest.mark.row("D17")
def test_completion_text_omits_only_start_end_and_padding() -> None:
    tokenizer = make_tokenizer()
    ids = token_ids(f"{BOS}{TAG}a{EOS}{PAD}", tokenizer)
    assert completion_text(ids, tokenizer, frozenset()) == f"{TAG}a{EOS}"
    assert completion_text(ids, tokenizer, frozenset(token_ids(EOS, tokenizer))) == f"{TAG}a"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {257}),
        ({"config": {"eos_token_id": 3}}, {257, 3}),
        ({"generation_config": {"eos_token_id": [3, 4]}}, {257, 3, 4}),
        ({"generation_config": {}, "config": {"eos_token_id": 3}}, {257}),
        ({"generation_config": {"eos_token_id": None}}, {257}),
        ({"generation_config": []}, {257}),
        ({"generation_config": {"eos_token_id": [-1, 3]}}, {257, 3}),
        ({"config": {"eos_token_id": -1}}, {257}),
    ],
)
def test_end_tokens_include_those_of_model_folder(
    tmp_path: Path, files: dict[str, Any], expected: set[int]
) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert end_token_ids(make_tokenizer(), tmp_path) == expected


TEXTS = ["", "the red fox", " é…\n\nfox", "<|im_start|>user\nthe<|im_end|>", "word " * 300]


@pytest.mark.parametrize("make", [byte_tokenizer, spaced_tokenizer])
@pytest.mark.parametrize("splits_special_tokens", [False, True])
def test_tokens_are_those_of_transformers(make: Any, splits_special_tokens: bool) -> None:
    tokenizer = copy.deepcopy(make())
    tokenizer.split_special_tokens = splits_special_tokens
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)

    own = [token_ids(text, tokenizer) for text in TEXTS]

    assert own == [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS]
    assert len(own[-1]) > 300


def test_tokens_of_class_with_own_rules_follow_them() -> None:
    class Reversed(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _encode_plus(self, text: str, **options: Any) -> Any:
            return super()._encode_plus(text[::-1], **options)

    tokenizer = Reversed(tokenizer_object=byte_tokenizer().backend_tokenizer)

    assert token_ids("the fox", tokenizer) == ids_of(byte_tokenizer(), "xof eht")


LOADED_BY_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from raggrpo_trainer.data.tokenizer import load_tokenizer

start = Barrier(4)
with ThreadPoolExecutor(4) as threads:
    loaded = threads.map(lambda _: (start.wait(), load_tokenizer(sys.argv[1])), range(4))
    print(len(list(loaded)))
"""


def test_threads_load_tokenizer_at_the_same_time(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_THREADS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.strip() == "4", done.stderr
