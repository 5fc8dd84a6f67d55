"""Redaction of what is shown or stored: messages, records, plans and reports."""

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from raggrpo_api.fields.json_values import FREE_JSON

from .detection import HIDDEN, has_secret, is_secret_pair, name_of, path_parts
from .names import is_secret_name
from .values import has_known_secret

_WORD: Final = re.compile(r"[^\s'\"]+")
# Without a limit of the scheme, a long text without spaces would take quadratic time.
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,63})?://([^/?#\s]*)([^?#\s]*)([?#]\S*)?")


def display_url(text: str) -> str:
    """Return a URL, or a text that contains URLs, for messages and records.

    Omits queries, fragments and credentials; hides parts of a path that look like secrets, and all
    parts that follow one such as `hooks`.
    """
    return _URL.sub(_displayed, text)


def display_path(path: str, host: str = "") -> str:
    """Return the path of a URL for messages and records."""
    parts = path_parts(host, path)
    return "/".join(HIDDEN if part and (after or bad) else part for part, after, bad in parts)


def url_secrets(url: str) -> Iterator[str]:
    """Yield the parts of a URL that must not be shown when a response repeats them."""
    parsed = urlsplit(url)
    parts = path_parts(parsed.netloc, parsed.path)
    yield from (part for part, _, is_secret in parts if is_secret)
    for name, value in parse_qsl(parsed.query):
        if is_secret_pair(name, value) or has_secret(value):
            yield value


def redacted(value: Any, name: str = "") -> Any:
    """Return a JSON value for records: without what looks like a secret by name or value."""
    if value and is_secret_name(name):
        return HIDDEN
    match value:
        case dict():
            return {_text(k): redacted(each, name_of(value, k)) for k, each in value.items()}
        case list():
            return [redacted(each) for each in value]
        case str():
            return _text(value)
    return value


def redacted_field(value: Any, field: str = "") -> Any:
    """Return the value of a field of a job for records, without what looks like a secret."""
    if field in FREE_JSON:
        return redacted(value)
    match value:
        case dict() if field == "headers":
            return value | {"value": HIDDEN if value.get("value") else ""}
        case dict():
            return {key: redacted_field(each, key) for key, each in value.items()}
        case list():
            return [redacted_field(each, field) for each in value]
        case str():
            return display_url(value)
    return value


def redacted_words(text: str) -> str:
    """Return a message without the words that look like secrets."""
    return _WORD.sub(lambda match: HIDDEN if has_secret(match[0]) else match[0], text)


def _text(text: str) -> str:
    shown = display_url(text)
    return HIDDEN if has_secret(shown) else shown


def _displayed(match: re.Match[str]) -> str:
    scheme, host, path, _ = match.groups("")
    host = host.rpartition("@")[2]
    shown = f"{scheme}://{host}{display_path(path, host)}"
    return f"{scheme}://{HIDDEN}" if has_known_secret(shown) else shown
