"""Recognition of random text, such as keys of unknown providers, among words, ids and hashes.

Entropy alone does not distinguish a key from a long name, so the share of letter pairs that are
common in words decides, for text above a minimum length and entropy.
"""

import re
from collections import Counter
from itertools import pairwise
from math import log2
from typing import Final

_PAIRS: Final = (
    "abcdgilmnprstu bae caehklort daeios eacdflmnprstvx faior geir haeio icdefglmnost jo ke "
    "ladeilosu maeiop nacdegiost obcdflmnoprstuw paeilorty qu raeinostuy sacehiopst taehiorstuy "
    "uelmnrst vaei wai yt"
)
_FOLLOWERS: Final = {word[0]: frozenset(word[1:]) for word in re.findall("[a-z]+", _PAIRS)}
"""Letter → letters that often follow it; the 150 most frequent pairs of English and of names of
software packages, which cover 85 % of their text and 22 % of random text."""
_MAX_NATURAL_SHARE: Final = 0.45
"""Maximum share of natural pairs in random text; words have about 0.8, random text 0.15."""
_MIN_ENTROPY: Final = 3.0
"""Minimum Shannon entropy in bits per character, which excludes repetitions."""
_MIN_LENGTH: Final = 16
_MIN_LENGTH_OF_ONE_CASE: Final = 24
"""Minimum characters of text in one case with at most one digit, which may be abbreviations."""
_MIN_SEGMENT: Final = 7
"""Minimum mean number of characters between the separators within a key; names have fewer."""
_MAX_LENGTH: Final = 512
"""Maximum characters of a key; longer text is data."""
_CAMEL_CASE: Final = re.compile("[A-Z]?[a-z]{3,12}([A-Z][a-z]{2,12})+")
_RUN: Final = re.compile(f"[A-Za-z0-9]{{{_MIN_LENGTH},}}")
_KEY: Final = re.compile("(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{20,}={0,2}(?![A-Za-z0-9+/_=-])")
_PUBLIC: Final = re.compile(
    r"(?s)-----BEGIN (?:[A-Z0-9 ]*CERTIFICATE|[A-Z ]*PUBLIC KEY)-----.*?(?:-----END[A-Z ]*-----|$)"
    r"|\bssh-[a-z0-9-]+ AAAA[A-Za-z0-9+/=]+|\bdata:[a-z]+/[a-z0-9.+-]+;base64,[A-Za-z0-9+/=]*"
    r"|\b(?:sha(?:1|256|384|512)|md5|h1)[-:=][A-Za-z0-9+/_=-]{22,}|/nix/store/[0-9a-z]{32}"
    r"|(?<![A-Za-z0-9])(?:raysubmit|asst|thread|file|batch|chatcmpl)[_-][A-Za-z0-9]{12,48}"
    r"|(?<![A-Za-z0-9])(?:g?[0-9a-f]+|[0-9A-F]+|[0-7][0-9A-HJKMNP-TV-Z]{25}"
    r"|Qm[1-9A-HJ-NP-Za-km-z]{44}|baf[a-z2-7]{56})(?![A-Za-z0-9])"
)
"""Certificates, public keys, inline files, digests, hexadecimal ids, ULIDs, IPFS addresses, and ids
of Ray jobs and of objects behind OpenAI-compatible servers."""


def has_random_text(text: str) -> bool:
    """Return whether a text contains a random string that is not a usual kind of id or digest."""
    private = _PUBLIC.sub(" ", text)
    runs = (match[0] for match in _RUN.finditer(private))
    keys = (match[0] for match in _KEY.finditer(private))
    return any(map(_is_random, runs)) or any(_is_separated_key(key) for key in keys)


def _is_separated_key(text: str) -> bool:
    """Return whether a text is a random string in base64, which contains separators."""
    separators = len(re.findall("[+/_-]", text))
    has_all = all(re.search(kind, text) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    return has_all and len(text) >= _MIN_SEGMENT * (separators + 1) and _is_random(text)


def _is_random(text: str) -> bool:
    if len(text) > _MAX_LENGTH or _is_name(text):
        return False
    return _natural_share(text) < _MAX_NATURAL_SHARE and _entropy(text) >= _MIN_ENTROPY


def _is_name(text: str) -> bool:
    """Return whether a text is in camelCase, or a short text of one case with at most a digit."""
    has_one_case = (text.islower() or text.isupper()) and sum(map(str.isdigit, text)) <= 1
    is_short = len(text) < _MIN_LENGTH_OF_ONE_CASE
    return (has_one_case and is_short) or _CAMEL_CASE.fullmatch(text) is not None


def _natural_share(text: str) -> float:
    pairs = [pair for pair in pairwise(text) if pair[0].isalnum() and pair[1].isalnum()]
    return sum(_is_natural(*pair) for pair in pairs) / max(1, len(pairs))


def _is_natural(first: str, second: str) -> bool:
    """Return whether two characters often follow each other in names, numbers and alphabets."""
    if first.isdigit() or second.isdigit():
        return first.isdigit() and second.isdigit()
    if first.islower() and second.isupper():
        return False
    first, second = first.lower(), second.lower()
    return second in _FOLLOWERS.get(first, ()) or ord(second) - ord(first) in (0, 1)


def _entropy(text: str) -> float:
    shares = (count / len(text) for count in Counter(text).values())
    return -sum(share * log2(share) for share in shares)
