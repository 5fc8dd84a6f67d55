"""Recognition of secrets by name and value, including encoded, embedded and random ones."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from raggrpo_api.fields.json_values import iter_texts, placeholders, render_text

from .names import is_secret_name
from .randomness import has_random_text
from .values import has_known_secret

HIDDEN: Final = "(hidden)"
_MAX_ENCODINGS: Final = 3
"""Maximum levels of base64, JSON or percent-encoding that are decoded."""
_BASE64: Final = re.compile("(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{16,}={0,2}(?![A-Za-z0-9+/_=-])")
_LOGIN: Final = re.compile(r"[^\s:]{1,64}:\S{4,}")
"""User and password, as encoded in a Basic authorization."""
_PASSWORD: Final = re.compile(
    r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])(?=.*[!#$%^*&])[A-Za-z0-9!@#$%^&*_~+-]{10,64}"
)
"""A text that consists of a generated password."""
_COMMAND: Final = re.compile(
    r"(^|\s)(-u|--user)[\s=]+[^\s:]{1,64}:\S|\blogin\s+\S{1,64}\s+password\s+\S"
)
"""Credentials in the arguments of a command or in a .netrc file."""
_HOST: Final = re.compile(r"://[^/?#\s]*")
_URL_PATH: Final = re.compile(r"://([^/?#\s]*)(/[^?#\s]*)")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z0-9_.-]{2,64})=[\"']?([^\s;,&\"']{8,})")
_YAML_FIELD: Final = re.compile(r"([A-Za-z0-9_.-]{2,64})[\"']?:\s+[\"']?([A-Za-z0-9+/=_.-]{16,})")
_HOOK: Final = re.compile("(?i)[a-z0-9_-]*hook[a-z0-9_-]*|(api[_-]?)?keys?|tokens?|secrets?")
"""Parts of a path that are followed by a secret."""
_WORD: Final = re.compile(r"v?[0-9]+|[a-z]{1,12}([-_.][a-z]{1,12})*|\{.*\}")
"""Parts of a path that are not secret: versions, numbers, lowercase words and placeholders."""
_MIN_SECRET_PART: Final = 6
_AMBIGUOUS_NAME: Final = re.compile("(?i)((sort|partition|primary|foreign|group|row)[_-]?)?keys?")
"""Names in a JSON or YAML text that are often not secret, such as the key of a toleration."""


class Finding(NamedTuple):
    """A text in a JSON value that looks like a secret."""

    path: str
    name: str
    """Name of the enclosing field."""
    by_name: bool
    """Whether the name, instead of the text, looks like that of a secret."""


def has_secret(text: str, encodings: int = 0) -> bool:
    """Return whether a text contains what looks like a secret, at any place and encoding."""
    if has_known_secret(text) or _PASSWORD.fullmatch(text) or _COMMAND.search(text):
        return True
    if _has_secret_path(text) or _assigns_secret(text):
        return True
    if has_random_text(_HOST.sub("://", _BASE64.sub(_undecodable, text))):
        return True
    return encodings < _MAX_ENCODINGS and any(
        has_secret(inner, encodings + 1) for inner in _decoded(text)
    )


def is_secret_pair(name: str, text: str) -> bool:
    """Return whether a name looks like that of a secret and the text is a literal value."""
    return is_secret_name(name) and bool(_literal(text))


def secret_texts(value: Any, path: str, name: str = "") -> Iterator[Finding]:
    """Yield the texts, numbers and names in a JSON value that look like secrets."""
    match value:
        case dict():
            for key, item in value.items():
                shown = key
                if has_secret(key):
                    yield Finding(path, name, by_name=False)
                    shown = HIDDEN
                yield from secret_texts(item, f"{path}.{shown}", name_of(value, shown, name))
        case list():
            for index, item in enumerate(value):
                yield from secret_texts(item, f"{path}[{index}]", name)
        case _:
            for _, _, text in iter_texts(value, path):
                by_name = is_secret_pair(name, text)
                if by_name or has_secret(text):
                    yield Finding(path, name, by_name)


def name_of(item: dict[str, Any], key: str, enclosing: str = "") -> str:
    """Return the name that describes a value: that of an enclosing secret, of a pair, or the key.

    In a pair such as {"name": "Authorization", "value": "…"}, the name is a value itself.
    """
    if is_secret_name(enclosing):
        return enclosing
    paired = item.get("name")
    return paired if key == "value" and isinstance(paired, str) else key


def path_parts(host: str, path: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield (part, whether it follows a part such as `hooks`, whether it looks like a secret)."""
    after_hook = host.lower().startswith("hooks.")
    for part in path.split("/"):
        plain = _without_percent(part)
        yield part, after_hook, _is_secret_part(plain, after_hook)
        after_hook = after_hook or _HOOK.fullmatch(plain) is not None


def _is_secret_part(part: str, after_hook: bool) -> bool:
    if after_hook and len(part) >= _MIN_SECRET_PART and not _WORD.fullmatch(part):
        return True
    return has_known_secret(part) or has_random_text(part)


def _has_secret_path(text: str) -> bool:
    return any(
        is_secret
        for match in _URL_PATH.finditer(text)
        for _, _, is_secret in path_parts(match[1], match[2])
    )


def _assigns_secret(text: str) -> bool:
    """Return whether a text such as a command or YAML assigns a value to a secret name."""
    return any(
        _is_embedded_pair(match[1], match[2])
        for pattern in (_ASSIGNMENT, _YAML_FIELD)
        for match in pattern.finditer(text)
    )


def _is_embedded_pair(name: str, text: str) -> bool:
    return not _AMBIGUOUS_NAME.fullmatch(name) and is_secret_pair(name, text)


def _decoded(text: str) -> Iterator[str]:
    """Yield the texts that are encoded in a text in base64, JSON or percent-encoding."""
    for match in _BASE64.finditer(text):
        if inner := _decoded_base64(match[0]):
            yield f"password={inner}" if _LOGIN.fullmatch(inner) else inner
    if text.lstrip()[:1] in ("{", "["):
        yield from _json_assignments(text)
    if (plain := unquote(text)) != text:
        yield plain


def _json_assignments(text: str) -> Iterator[str]:
    try:
        value = json.loads(text)
        texts = list(iter_texts(value, ""))
    except (ValueError, RecursionError):
        return
    for _, name, inner in texts:
        yield inner
        if _is_embedded_pair(name, inner):
            yield f"password={inner}"


def _undecodable(match: re.Match[str]) -> str:
    return "" if _decoded_base64(match[0]) else match[0]


def _decoded_base64(text: str) -> str:
    """Return the readable text that is encoded in base64, or ""."""
    digits = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        plain = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return plain if re.sub(r"\s", "", plain).isprintable() else ""


def _literal(text: str) -> str:
    """Return a text without its placeholders, whose values come from the data."""
    return render_text(text, dict.fromkeys(placeholders(text), ""))


def _without_percent(text: str) -> str:
    for _ in range(_MAX_ENCODINGS):
        text = unquote(text)
    return text
