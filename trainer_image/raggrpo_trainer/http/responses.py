"""Read a service's answer: JSON, or a stream of JSON events. Bounded, because answers are foreign.

Server-sent events as in WHATWG HTML, section 9.2; `[DONE]` ends a stream as with OpenAI's API.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from raggrpo_trainer.call_failures import CallFailed, FailureCause

MAX_RESPONSE_BYTES: Final = 16 * 2**20
MAX_RESPONSE_DEPTH: Final = 64
LINES: Final = ("application/x-ndjson", "application/jsonl", "application/json-lines")
EVENTS: Final = "text/event-stream"
EVENT_FIELDS: Final = ("data:", "event:", "id:", "retry:", ":")
END: Final = "[DONE]"
ERROR: Final = "error"
"""The name of an event that ends a stream which failed."""


class ResponseTooLarge(ValueError):
    """An answer that is not read to its end."""

    def __init__(self) -> None:
        super().__init__(f"the answer has more than {MAX_RESPONSE_BYTES // 2**20} MiB")


@dataclass(frozen=True, slots=True)
class Stream:
    """The JSON values of a streamed answer, in order."""

    events: list[Any]
    errors: list[Any] = field(default_factory=list)
    """What events named `error` said: JSON values, or texts."""


def decode_response(body: bytes, content_type: str) -> Any:
    """Return an answer's JSON value, or a Stream. Raises ValueError if it cannot be read.

    Streams are often sent under the type of something else, so what is no JSON is looked at.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind != EVENTS and kind not in LINES:
        try:
            return _loads(body)
        except json.JSONDecodeError:
            kind = _kind_of(body)
            if not kind:
                raise
    text = body.decode(errors="replace").removeprefix("\ufeff")
    # Only a newline ends a line: JSON texts may hold the other separators of Unicode as they are.
    named = _events(text) if kind == EVENTS else [("", line) for line in text.split("\n")]
    return _stream(named)


def require_object(answer: Any) -> dict[str, Any]:
    """Return an answer that must be a JSON object. Raises CallFailed (BadJson)."""
    if not isinstance(answer, dict):
        raise CallFailed(FailureCause.BAD_JSON, f"no JSON object but {type(answer).__name__}")
    return answer


def _kind_of(body: bytes) -> str:
    """Return the content type of a stream by its first line, empty if it is none."""
    first, _, rest = body.decode(errors="replace").lstrip("\ufeff\r\n").partition("\n")
    if first.startswith(EVENT_FIELDS):
        return EVENTS
    try:
        return LINES[0] if rest and isinstance(json.loads(first), dict | list) else ""
    except (ValueError, RecursionError):
        return ""


def _events(text: str) -> list[tuple[str, str]]:
    """Return the name and data of each event; several data lines of one event are joined."""
    events: list[tuple[str, str]] = []
    name, lines = "", list[str]()
    for line in [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        key, _, value = line.partition(":")
        if key == "data":
            lines.append(value.removeprefix(" "))
        elif key == "event":
            name = value.strip()
        elif not line:
            if lines:
                events.append((name, "\n".join(lines)))
            name, lines = "", []
    return events


def _stream(named: list[tuple[str, str]]) -> Stream:
    """Return what the events hold. Heartbeats, which are no JSON, are left out beside others."""
    stream, unreadable = Stream([]), list[ValueError]()
    for name, data in named:
        text = data.strip()
        if not text or text == END:
            continue
        try:
            value = _loads(text)
        except json.JSONDecodeError as error:
            if name != ERROR:
                if text[0] in "{[":  # an answer that was cut off
                    raise
                unreadable.append(error)
                continue
            value = text
        (stream.errors if name == ERROR else stream.events).append(value)
    if unreadable and not stream.events and not stream.errors:
        raise unreadable[0]
    return stream


def _loads(text: str | bytes) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    level = [value]
    for _ in range(MAX_RESPONSE_DEPTH):
        level = [item for each in level for item in _inside(each)]
        if not level:
            return value
    raise ValueError(f"the answer has more than {MAX_RESPONSE_DEPTH} levels")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
