"""Decode a service's response: JSON, or a stream of JSON events. Size and depth are limited.

Server-sent events follow WHATWG HTML, section 9.2; `[DONE]` ends a stream as in OpenAI's API.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from raggrpo_api.foreign_files import require_few_values
from raggrpo_trainer.call_failures import CallFailed, FailureCause

MAX_RESPONSE_BYTES: Final = 16 * 2**20
MAX_RESPONSE_DEPTH: Final = 64
MAX_STREAM_LINES: Final = 16_384
"""Lines of a stream, empty ones included: parsing them blocks the event loop."""
JSON_LINES_TYPES: Final = ("application/x-ndjson", "application/jsonl", "application/json-lines")
EVENT_STREAM_TYPE: Final = "text/event-stream"
EVENT_FIELDS: Final = ("data:", "event:", "id:", "retry:", ":")
DONE_MARKER: Final = "[DONE]"
ERROR_EVENT: Final = "error"
"""Name of the event that ends a failed stream."""
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD]")
"""Start of an escaped surrogate in JSON; only a pair of surrogates is a character."""


class ResponseTooLarge(ValueError):
    """The response exceeds MAX_RESPONSE_BYTES; reading was stopped."""

    def __init__(self) -> None:
        super().__init__(f"the response is larger than {MAX_RESPONSE_BYTES // 2**20} MiB")


@dataclass(frozen=True, slots=True)
class Stream:
    """The JSON values of a streamed response, in order."""

    events: list[Any]
    errors: list[Any] = field(default_factory=list)
    """Data of the events named `error`: JSON values or text."""


def decode_response(body: bytes, content_type: str) -> Any:
    """Return the JSON value of a response, or a Stream. Raises ValueError if it cannot be decoded.

    Many services send streams with a wrong content type, so a body that is not JSON is inspected.
    """
    kind = content_type.partition(";")[0].strip().lower()
    require_few_values(body)
    text = body.decode(json.detect_encoding(body))
    if kind != EVENT_STREAM_TYPE and kind not in JSON_LINES_TYPES:
        try:
            return _loads(text)
        except json.JSONDecodeError:
            kind = _stream_type(text)
            if not kind:
                raise
    if max(text.count("\n"), text.count("\r")) > MAX_STREAM_LINES:
        raise ValueError(f"the stream has more than {MAX_STREAM_LINES:,} lines")
    text = text.removeprefix("\ufeff")
    # Split at newlines only: JSON strings may contain the other Unicode line separators.
    return _stream(
        _events(text) if kind == EVENT_STREAM_TYPE else (("", line) for line in text.split("\n"))
    )


def require_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object. Raises CallFailed (BadJson) otherwise."""
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise CallFailed(FailureCause.BAD_JSON, f"expected a JSON object, received {kind}")
    return value


def _stream_type(text: str) -> str:
    """Return the content type of a stream by its first line, or "" if the text is not a stream."""
    first, _, rest = text.lstrip("\ufeff\r\n").partition("\n")
    if first.startswith(EVENT_FIELDS):
        return EVENT_STREAM_TYPE
    try:
        return JSON_LINES_TYPES[0] if rest and isinstance(json.loads(first), dict | list) else ""
    except (ValueError, RecursionError):
        return ""


def _events(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and data of each event; the data lines of an event are joined."""
    name = ""
    lines: list[str] = []
    for line in [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        key, _, value = line.partition(":")
        if key == "data":
            lines.append(value.removeprefix(" "))
        elif key == "event":
            name = value.strip()
        elif not line:
            if lines:
                yield name, "\n".join(lines)
            name = ""
            lines = []


def _stream(events: Iterable[tuple[str, str]]) -> Stream:
    """Return the decoded events. Events that are not JSON, such as heartbeats, are skipped.

    Raises ValueError if no event is JSON, or if an event is truncated.
    """
    stream = Stream([])
    skipped: list[ValueError] = []
    for name, data in events:
        text = data.strip()
        if not text or text == DONE_MARKER:
            continue
        try:
            value = _loads(text)
        except json.JSONDecodeError as error:
            if name != ERROR_EVENT:
                if text[0] in "{[":  # truncated
                    raise
                skipped.append(error)
                continue
            value = text
        (stream.errors if name == ERROR_EVENT else stream.events).append(value)
    if skipped and not stream.events and not stream.errors:
        raise skipped[0]
    return stream


def _loads(text: str) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("the response is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python's limit, whose message suggests to change the interpreter
        raise ValueError("a number in the response has too many digits") from None
    _require_shallow(value)
    if _SURROGATE_ESCAPE.search(text):  # no tokenizer encodes half a pair
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


def _require_shallow(value: Any) -> None:
    """Raise ValueError if a JSON value has more than MAX_RESPONSE_DEPTH levels."""
    level = [value]
    for _ in range(MAX_RESPONSE_DEPTH):
        level = [item for each in level for item in _children(each)]
        if not level:
            return
    raise ValueError(f"the response is nested deeper than {MAX_RESPONSE_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
