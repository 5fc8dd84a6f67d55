import json
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
    ],
)
def test_end_tokens_include_those_of_model_folder(
    tmp_path: Path, files: dict[str, Any], expected: set[int]
) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert end_token_ids(make_tokenizer(), tmp_path) == expected
