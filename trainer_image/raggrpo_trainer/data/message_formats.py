"""Recognize messages in values and texts, also in formats that are not supported. Pure."""

import re
from collections.abc import Mapping

from raggrpo_api.foreign_files import parse_json

from .columns import MAX_PATH_CHARACTERS

INVISIBLE = " \t\r\n\ufeff\u200b"
"""Characters before a list that do not belong to it, such as a byte order mark."""
_OPENING = re.compile(r"""['"]?\s*(?:[\w.]+\(\s*)?[\[({]""")
"""Start of a list or object, as JSON or as printed by Python and numpy."""
_MESSAGE_KEYS = tuple(
    tuple(re.compile(rf"""['"]{key}\\?['"]\s*:""") for key in (kind, content))
    for kind, content in (("role", "content"), ("from", "value"))
)
"""Keys of a message in the formats of verl and ShareGPT, as JSON or printed by Python."""
SHARE_GPT_ROLES = {
    "assistant": "assistant",
    "chatgpt": "assistant",
    "gpt": "assistant",
    "human": "user",
    "system": "system",
    "user": "user",
}
"""Roles by the names that ShareGPT's format uses for them."""
_KNOWN_ROLES = frozenset({*SHARE_GPT_ROLES, "ai", "bot", "developer"})
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from", "type"), ("content", "value")
_ROLES = "|".join(sorted(_KNOWN_ROLES))
_KNOWN_ROLE_KEY = re.compile(
    rf"""(?i)['"](?:{"|".join(_ROLE_KEYS)})\\*['"]\s*:\s*\\*['"](?:{_ROLES})\\*['"]"""
)
_CONTENT_KEY = re.compile(rf"""(?i)['"](?:{"|".join(_CONTENT_KEYS)})\\*['"]\s*:""")
"""Role and content of a message in any format; other values of `from` are data, such as mail."""
_PRINTED_OBJECT = re.compile(r"[\[(]*(?:\w+\(\s*messages=[\[(]*)?([\w.]+)\(")
_PRINTED_FIELD = re.compile(r"\b(?:role|content)=")
"""Objects of a chat library as printed by Python, such as `[HumanMessage(content='x')]`."""
_PAIRS = re.compile(rf"""(?i)[\[(]\s*[\[(]\s*['"](?:{_ROLES})['"]\s*,.*[\])]""", re.DOTALL)
"""List of pairs of role and content, as JSON or as printed by Python."""


def has_message_keys(text: str) -> bool:
    """Return whether a text may be messages, as JSON or as printed by Python."""
    stripped = text.strip(INVISIBLE)
    pairs = [*_MESSAGE_KEYS, (_KNOWN_ROLE_KEY, _CONTENT_KEY)]
    return _OPENING.match(stripped) is not None and any(
        kind.search(stripped) and content.search(stripped) for kind, content in pairs
    )


def unsupported_format(text: str) -> str:
    """Return the format of a text that contains nothing but messages, or "" for other texts.

    The formats are those that are not parsed: printed objects, pairs, lists below an object.
    """
    stripped = text.strip(INVISIBLE)
    if _is_printed_objects(stripped):
        return "messages as printed by Python"
    if _PAIRS.fullmatch(stripped):
        return "a list of pairs of role and content"
    path = _path_to_messages(stripped)
    return f"an object with messages at {path!r}" if path else ""


def is_message(value: object) -> bool:
    """Return whether a value is a message, perhaps an invalid one."""
    if not isinstance(value, Mapping):
        return False
    return "role" in value or value.keys() >= {"from", "value"} or _is_known_message(value)


def starts_with_message(value: object) -> bool:
    """Return whether a value is a list of messages, perhaps an invalid or a nested one."""
    while isinstance(value, list) and value:
        value = value[0]
    return is_message(value)


def _is_printed_objects(text: str) -> bool:
    opening = _PRINTED_OBJECT.match(text)
    if opening is None or "Message" not in opening[1] or not text.endswith((")", "]")):
        return False
    return _PRINTED_FIELD.search(text, opening.end()) is not None


def _path_to_messages(text: str) -> str:
    """Return the path of a list of messages in a JSON object, or ""."""
    if not _KNOWN_ROLE_KEY.search(text):
        return ""
    try:
        level = [("", parse_json(text))]
    except ValueError:
        return ""
    while level:
        below = [
            (f"{path}.{key[:MAX_PATH_CHARACTERS]}".lstrip(".")[:MAX_PATH_CHARACTERS], each)
            for path, value in level
            if isinstance(value, Mapping)
            for key, each in value.items()
        ]
        if paths := [path for path, each in below if _has_known_message(each)]:
            return paths[0]
        level = below
    return ""


def _has_known_message(value: object) -> bool:
    return isinstance(value, list) and bool(value) and _is_known_message(value[0])


def _is_known_message(value: object) -> bool:
    """Return whether a value has content and a known role, by keys of any format or case."""
    if not isinstance(value, Mapping):
        return False
    fields = {str(key).casefold(): each for key, each in value.items()}
    roles = [str(fields[key]).casefold() for key in _ROLE_KEYS if key in fields]
    return not fields.keys().isdisjoint(_CONTENT_KEYS) and not _KNOWN_ROLES.isdisjoint(roles)
