import base64
import io
import json
import struct
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, normalizers

from raggrpo_api.tokenizer_rules import MAX_RULES, expansion

SPACE = normalizers.Replace(Regex(" {2,}"), "▁")


def rule_of(normalizer: Any) -> Any:
    return json.loads(normalizer.__getstate__())


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (normalizers.Replace(" ", "▁"), 1),
        (normalizers.Replace("``", '"'), 1),
        (normalizers.Replace("ab", "abcde"), 3),
        (normalizers.Replace("", "ab"), 3),
        (normalizers.Replace(Regex("x*"), "ab"), 3),
        (SPACE, 2),
        (normalizers.Prepend("▁"), 2),
        (normalizers.BertNormalizer(), 3),
        (normalizers.NFKC(), 1),
        (normalizers.Sequence([normalizers.Replace("a", "bb"), SPACE, SPACE]), 8),
        (normalizers.Sequence([normalizers.Sequence([SPACE, SPACE]), SPACE]), 8),
    ],
    ids=str,
)
def test_expansion_is_product_of_all_rules(normalizer: Any, expected: int) -> None:
    assert expansion(rule_of(normalizer)) == expected


@pytest.mark.parametrize(
    "rule", [None, {"type": "ByteLevel"}, {"type": "Sequence", "decoders": []}]
)
def test_missing_rules_expand_nothing(rule: Any) -> None:
    assert expansion(rule) == 1


@pytest.mark.parametrize("nested", [True, False])
def test_too_many_rules_are_an_error(nested: bool) -> None:
    rule: dict[str, Any] = {"type": "NFC"}
    for _ in range(MAX_RULES if nested else 1):
        number = 1 if nested else MAX_RULES
        rule = {"type": "Sequence", "normalizers": [rule] * number}
    with pytest.raises(ValueError, match=f"more than {MAX_RULES} rules"):
        expansion(rule)


def character_map(*texts: str) -> dict[str, Any]:
    content = struct.pack("<I", 4) + b"trie" + b"".join(each.encode() + b"\0" for each in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def test_character_map_expands_to_its_longest_text() -> None:
    assert expansion(character_map()) == 1
    assert expansion(character_map("a", "東京駅", "b")) == 3
    assert expansion(character_map("z" * 1000)) == 1000


def test_character_map_of_sentencepiece_expands_to_18_letters() -> None:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"] * 10),
        model_writer=written,
        vocab_size=8,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    content = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    rules = [{"type": "Precompiled", "precompiled_charsmap": content}, rule_of(SPACE)]
    assert expansion({"type": "Sequence", "normalizers": rules}) == 36
