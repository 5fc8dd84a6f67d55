"""How much longer a text can become by the rules of a tokenizer.json. Pure.

A trial with one text does not show this: a rule may replace a word that the text does not contain.
"""

import base64
import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

MAX_RULES = 64
"""Rules of a part of a tokenizer, sequences included."""
MAX_EXPANSION = 160
"""Characters that all replacements of a part together may write per character.

Normalizers of XLM-R write 36: a ligature of Arabic becomes 18 letters, and each may get a space;
those of others have more such replacements.
"""
Rule = Mapping[str, Any]

_NESTED = ("normalizers", "pretokenizers", "processors", "decoders")
"""Fields with the rules of a sequence."""
_PLAIN = {
    "normalizer": {"Sequence", "Replace", "Precompiled", "Strip", "StripAccents", "Nmt"},
    "pre_tokenizer": {
        *("Sequence", "Split", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Digits"),
        *("CharDelimiterSplit", "Punctuation", "UnicodeScripts", "FixedLength"),
    },
    "post_processor": {
        *("Sequence", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel"),
    },
    "decoder": {"Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "ByteLevel"},
}
"""Rules that any number of times write no more characters, besides those of `_expansion`."""
_REPEATED = {
    "normalizer": {
        **dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD", "Lowercase"), 2),
        **dict.fromkeys(("BertNormalizer", "ByteLevel", "Prepend"), 1),
    },
    "pre_tokenizer": {"ByteLevel": 1, "Metaspace": 1},
    "post_processor": {},
    "decoder": {"WordPiece": 1, "Metaspace": 1, "BPEDecoder": 1, "CTC": 1},
}
"""Rules that write a few characters per character each time, with how often they may occur."""


def require_bounded(part: str, rule: Rule | None) -> None:
    """Raise ValueError if a part of a tokenizer can write any number of characters or tokens.

    `part` is normalizer, pre_tokenizer, post_processor or decoder. Raises exceptions of any type
    for a rule that the tokenizers library does not write.
    """
    rules = list(_rules(rule))
    counts = Counter(each["type"] for each in rules)
    for kind, count in counts.items():
        most = MAX_RULES if kind in _PLAIN[part] else _REPEATED[part].get(kind, 0)
        if most == 0:
            raise ValueError(f"a rule {kind:.40}, which is not supported")
        if count > most:
            raise ValueError(f"{count} rules {kind} (limit {most})")
    for each in rules:
        _require_single_sequences(each)
    if math.prod(_expansion(each) for each in rules) > MAX_EXPANSION:
        raise ValueError(f"rules that write more than {MAX_EXPANSION} characters for a character")


def _rules(rule: Rule | None) -> Iterator[Rule]:
    """Yield a rule and those of nested sequences. Raises ValueError for more than MAX_RULES."""
    waiting = [rule] if rule else []
    for _ in range(MAX_RULES):
        if not waiting:
            return
        each = waiting.pop()
        for field in _NESTED:
            waiting += each.get(field) or ()
        yield each
    if waiting:
        raise ValueError(f"more than {MAX_RULES} rules")


def _require_single_sequences(rule: Rule) -> None:
    """Raise ValueError if a template has the tokens of a text twice."""
    for field in ("single", "pair"):
        items = rule.get(field)
        names = [each["Sequence"]["id"] for each in items or () if "Sequence" in each]
        if len(names) > len(set(names)):
            raise ValueError(f"a template that repeats the tokens of a text ({field})")


def _expansion(rule: Rule) -> int:
    """Return the largest number of characters that a replacement writes per character."""
    match rule["type"]:
        case "Replace":
            written = len(rule["content"])
            if text := rule["pattern"].get("String"):
                return max(1, math.ceil(written / len(text)))
            return 1 + written  # a regular expression may match nothing
        case "Prepend":  # to each part of a text between special tokens
            return 1 + len(rule["prepend"])
        case "Precompiled":
            return _longest_text(base64.b64decode(rule["precompiled_charsmap"]))
    return 1


def _longest_text(characters: bytes) -> int:
    """Return the length of the longest text in a character map of SentencePiece.

    The map is the size of a trie in bytes, the trie, and texts that end with a zero byte.
    """
    [size] = struct.unpack_from("<I", characters)
    texts = characters[4 + size :].split(b"\0")
    return max(1, *(len(each.decode(errors="replace")) for each in texts))
