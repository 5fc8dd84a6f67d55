"""How much longer a text can become by the rules of a tokenizer.json. Pure.

A trial with one text does not show this: a rule may replace a word that the text does not contain.
"""

import base64
import math
import struct
from collections.abc import Mapping
from typing import Any

MAX_RULES = 64
"""Rules of a normalizer or decoder, sequences included; some rules add a character each time."""
MAX_EXPANSION = 64
"""Characters that all rules together may write per character.

Normalizers of XLM-R write 36: a ligature of Arabic becomes 18 letters, and each may get a space.
"""

Rule = Mapping[str, Any]


def expansion(rule: Rule | None) -> int:
    """Return the largest number of characters that a normalizer or decoder writes per character.

    Raises ValueError for more than MAX_RULES rules, and exceptions of any type for a rule that the
    tokenizers library does not write.
    """
    written = 1
    waiting = [rule] if rule else []
    for _ in range(MAX_RULES):
        if not waiting:
            return written
        each = waiting.pop()
        waiting += each.get("normalizers") or each.get("decoders") or ()
        written *= _expansion_of_one(each)
    raise ValueError(f"more than {MAX_RULES} rules")


def _expansion_of_one(rule: Rule) -> int:
    match rule["type"]:
        case "Replace":
            written = len(rule["content"])
            if text := rule["pattern"].get("String"):
                return max(1, math.ceil(written / len(text)))
            return 1 + written  # a regular expression may match nothing
        case "Prepend":  # to each part of a text between special tokens
            return 1 + len(rule["prepend"])
        case "BertNormalizer":  # a space before and after each Chinese character
            return 3
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
