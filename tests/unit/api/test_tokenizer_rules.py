import base64
import io
import json
import struct
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

from raggrpo_api.tokenizer_rules import MAX_EXPANSION, MAX_RULES, require_bounded

SPACES = normalizers.Replace(Regex(" {2,}"), "▁")
SPACE_MARK = normalizers.Replace(" ", "▁")


def template(single: str, pair: str) -> Any:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[("<s>", 0)])


def rule_of(normalizer: Any) -> Any:
    return json.loads(normalizer.__getstate__())


WORDS = [pre_tokenizers.Split(Regex("[a-z]+"), "isolated"), pre_tokenizers.Digits()]
FAMILIES: dict[str, list[tuple[str, Any]]] = {
    "Llama 2, Gemma": [
        ("normalizer", normalizers.Sequence([normalizers.Prepend("▁"), SPACE_MARK])),
        ("decoder", decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])),
        ("decoder", decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])),
        ("post_processor", template("<s> $A", "<s> $A <s> $B")),
    ],
    "Qwen, Llama 3, DeepSeek, GPT-2": [
        ("normalizer", normalizers.NFC()),
        ("pre_tokenizer", pre_tokenizers.Sequence([*WORDS, pre_tokenizers.ByteLevel()])),
        ("decoder", decoders.ByteLevel()),
        (
            "post_processor",
            processors.Sequence([processors.ByteLevel(), template("<s> $A", "$A $B")]),
        ),
    ],
    "BERT": [
        ("normalizer", normalizers.BertNormalizer()),
        ("pre_tokenizer", pre_tokenizers.BertPreTokenizer()),
        ("decoder", decoders.WordPiece()),
    ],
    "XLNet, ALBERT": [
        (
            "normalizer",
            normalizers.Sequence(
                [
                    normalizers.Replace("``", '"'),
                    normalizers.NFKD(),
                    normalizers.StripAccents(),
                    normalizers.Lowercase(),
                    SPACES,
                ]
            ),
        ),
        ("pre_tokenizer", pre_tokenizers.Metaspace()),
        ("decoder", decoders.Metaspace()),
    ],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_rules_of_usual_tokenizers_are_accepted(name: str) -> None:
    for part, rule in FAMILIES[name]:
        require_bounded(part, rule_of(rule))


@pytest.mark.parametrize("rule", [None, {"type": "Sequence", "decoders": []}])
def test_missing_rules_are_accepted(rule: Any) -> None:
    require_bounded("decoder", rule)


def replaced(written: int) -> Any:
    return normalizers.Sequence([SPACES, normalizers.Replace("ab", "c" * written)])


def test_replacements_are_limited_by_their_product() -> None:
    require_bounded("normalizer", rule_of(replaced(160)))
    with pytest.raises(ValueError, match="write more than 160 characters for a character"):
        require_bounded("normalizer", rule_of(replaced(162)))
    empty = normalizers.Sequence([normalizers.Replace(Regex("x*"), "a")] * 8)
    with pytest.raises(ValueError, match="write more than 160 characters for a character"):
        require_bounded("normalizer", rule_of(empty))


@pytest.mark.parametrize(
    ("part", "rule", "number"),
    [
        ("normalizer", normalizers.Sequence([normalizers.ByteLevel()] * 2), 2),
        ("normalizer", normalizers.Sequence([normalizers.NFKD()] * 3), 3),
        ("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 2), 2),
        ("decoder", decoders.Sequence([decoders.CTC(word_delimiter_token="")] * 2), 2),
    ],
    ids=str,
)
def test_rules_that_write_more_each_time_are_limited(part: str, rule: Any, number: int) -> None:
    with pytest.raises(ValueError, match=rf"^{number} rules \w+ \(limit {number - 1}\)"):
        require_bounded(part, rule_of(rule))


def test_unknown_rule_is_rejected() -> None:
    with pytest.raises(ValueError, match="a rule Doubling, which is not supported"):
        require_bounded("normalizer", {"type": "Doubling"})


@pytest.mark.parametrize("field", ["single", "pair"])
def test_template_with_text_twice_is_rejected(field: str) -> None:
    rule = rule_of(template("$A", "$A $B"))
    rule[field] = rule[field] * 2
    with pytest.raises(ValueError, match=rf"repeats the tokens of a text \({field}\)"):
        require_bounded("post_processor", rule)


@pytest.mark.parametrize("nested", [True, False])
def test_too_many_rules_are_an_error(nested: bool) -> None:
    rule: dict[str, Any] = {"type": "Nmt"}
    for _ in range(MAX_RULES if nested else 1):
        number = 1 if nested else MAX_RULES
        rule = {"type": "Sequence", "normalizers": [rule] * number}
    with pytest.raises(ValueError, match=f"more than {MAX_RULES} rules"):
        require_bounded("normalizer", rule)


def character_map(*texts: str) -> dict[str, Any]:
    content = struct.pack("<I", 4) + b"trie" + b"".join(each.encode() + b"\0" for each in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def test_character_map_counts_as_its_longest_text() -> None:
    for texts in ((), ("a", "東京駅", "b"), ("z" * MAX_EXPANSION,)):
        require_bounded("normalizer", character_map(*texts))
    with pytest.raises(ValueError, match="write more than 160 characters for a character"):
        require_bounded("normalizer", character_map("a", "z" * (MAX_EXPANSION + 1)))


def test_character_map_of_sentencepiece_is_accepted() -> None:
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
    rules = [{"type": "Precompiled", "precompiled_charsmap": content}, rule_of(SPACES)]
    require_bounded("normalizer", {"type": "Sequence", "normalizers": rules})
