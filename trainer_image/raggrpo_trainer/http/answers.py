"""Read a service's answer: JSON, or a stream of JSON events. Bounded, because answers are foreign.

Server-sent events as in WHATWG HTML, section 9.2; `[DONE]` ends a stream as with OpenAI's API.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from raggrpo_trainer.sample_failures import CallFailed, FailureCause

MAX_ANSWER_BYTES: Final = 16 * 2**20
MAX_ANSWER_DEPTH: Final = 64
LINES: Final = ("application/x-ndjson", "application/jsonl", "application/json-lines")
EVENTS: Final = "text/event-stream"
END: Final = "[DONE]"


class TooLarge(ValueError):
    """An answer that is not read to its end."""

    def __init__(self) -> None:
        super().__init__(f"the answer has more than {MAX_ANSWER_BYTES // 2**20} MiB")


@dataclass(frozen=True, slots=True)
class Stream:
    """The JSON values of a streamed answer, in order."""

    events: list[Any]


def decoded(body: bytes, content_type: str) -> Any:
    """Return an answer's JSON value, or a Stream. Raises ValueError if it cannot be read."""
    match content_type.partition(";")[0].strip().lower():
        case kind if kind == EVENTS:
            texts = _events(body.decode(errors="replace"))
        case kind if kind in LINES:
            texts = [line for line in body.decode(errors="replace").splitlines() if line.strip()]
        case _:
            return _loads(body)
    return Stream([_loads(text) for text in texts if text != END])


def as_object(answer: Any) -> dict[str, Any]:
    """Return an answer that must be a JSON object. Raises CallFailed (BadJson)."""
    if not isinstance(answer, dict):
        raise CallFailed(FailureCause.BAD_JSON, f"no JSON object but {type(answer).__name__}")
    return answer


def _events(text: str) -> list[str]:
    """Return the data of each event; several data lines of one event are joined."""
    events: list[str] = []
    lines: list[str] = []
    for line in [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        field, _, value = line.partition(":")
        if field == "data":
            lines.append(value.removeprefix(" "))
        elif not line and lines:
            events.append("\n".join(lines))
            lines = []
    return events


def _loads(text: str | bytes) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    level = [value]
    for _ in range(MAX_ANSWER_DEPTH):
        level = [item for each in level for item in _inside(each)]
        if not level:
            return value
    raise ValueError(f"the answer has more than {MAX_ANSWER_DEPTH} levels")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
