"""Responses within the limit of bytes, made to exhaust memory, to hang or to end a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raggrpo_trainer.http.responses import (
    MAX_RESPONSE_BYTES,
    MAX_STREAM_LINES,
    Stream,
    decode_response,
)
from support.hostile.limited_process import outcomes

JSON, JSON_LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"


def filled(unit: str, start: str = "", end: str = "", separator: str = ",") -> Callable[[], str]:
    """Return a function that repeats `unit` between `start` and `end` up to the limit of bytes."""
    size = MAX_RESPONSE_BYTES - len(start) - len(end) - len(unit)
    return lambda: start + (unit + separator) * (size // len(unit + separator)) + unit + end


def keys_and_objects(keys: int, objects: int) -> Callable[[], str]:
    """Return a function that writes a result of many texts before many empty results."""
    texts = ",".join(f'"k{i}":["a b",0]' for i in range(keys))
    return lambda: '{"a":[{' + texts + "}," + ",".join(["{}"] * objects) + "]}"


def nested_lists(depth: int, width: int) -> str:
    """Return an object of `width` lists at each of `depth` levels, with a text at the bottom."""
    if not depth:
        return '[{"text":"a b"},{}]'
    return "{" + ",".join(f'"k{i}":{nested_lists(depth - 1, width)}' for i in range(width)) + "}"


CASES: dict[str, tuple[Callable[[], str], str]] = {
    "newlines as JSON lines": (filled("\n", separator=""), JSON_LINES),
    "newlines as events": (filled("\r", separator=""), EVENTS),
    "numbers as JSON lines": (filled("1", separator="\n"), JSON_LINES),
    "objects as JSON lines": (filled("{}", separator="\n"), JSON_LINES),
    "numbers as events": (filled("data:1", separator="\n\n"), EVENTS),
    "numbers as one event": (filled("data:1", separator="\n"), EVENTS),
    "objects as lines of JSON": (filled("{}", separator="\n"), JSON),
    "mismatch of 3,000 keys": (keys_and_objects(3_000, 300_000), JSON),
    "mismatch of 100,000 keys": (keys_and_objects(100_000, 1_000_000), JSON),
    "mismatch of many lists": (lambda: nested_lists(4, 24), JSON),
    "empty header objects": (filled("{}", '{"responses":[', "]}"), JSON),
    "header objects": (
        filled('{"code":"0","msg":"ok"}', '{"responses":[', "]}"),
        JSON,
    ),
    "header objects in each event": (
        filled('{"responses":[' + '{"code":"0"},' * 80 + "{}]}", separator="\n"),
        JSON_LINES,
    ),
    "numbers": (filled("1", '{"results":[', "]}"), JSON),
    "empty lists": (filled("[]", '{"results":[', "]}"), JSON),
    "numbers as results of Search-R1": (filled("1", '{"result":[[', "]]}"), JSON),
    "objects as results of Search-R1": (filled("{}", '{"result":[[', "]]}"), JSON),
    "lists of Search-R1": (filled("[]", '{"result":[', "]}"), JSON),
    "long key": (filled("a", '{"', '":[{}]}', separator=""), JSON),
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcome of each case by its name."""
    paths: dict[str, Path] = {}
    for name, (make, kind) in CASES.items():
        paths[name] = tmp_path_factory.mktemp("case") / kind
        paths[name].parent.mkdir()
        paths[name].write_text(make())
        assert paths[name].stat().st_size <= MAX_RESPONSE_BYTES
    by_path = outcomes("response", list(paths.values()))
    return {name: by_path[str(path)] for name, path in paths.items()}


@pytest.mark.parametrize("name", CASES)
def test_hostile_response_is_parsed_within_limits(checked: dict[str, str], name: str) -> None:
    assert checked[name].startswith(("rejected by Http: ", "accepted by Http: ")), checked[name]


@pytest.mark.parametrize("start", ["", "data: "])
def test_stream_of_many_lines_is_rejected(start: str) -> None:
    line = f"{start}{{}}\n\n"
    stream = decode_response((line * (MAX_STREAM_LINES // 2)).encode(), "")
    with pytest.raises(ValueError, match=r"more than 16,384 lines"):
        decode_response((line * (MAX_STREAM_LINES // 2 + 1)).encode(), "")

    assert isinstance(stream, Stream)
    assert len(stream.events) == MAX_STREAM_LINES // 2


@pytest.mark.parametrize("kind", [JSON, JSON_LINES])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\udfff a", "? a"),
        (r"\ud83d\ude00 \uD800", "\U0001f600 ?"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\\ud800", r"\ud800"),
    ],
)
def test_lone_surrogates_of_response_are_replaced(text: str, expected: str, kind: str) -> None:
    value = decode_response(f'{{"{text}":["{text}"]}}\n'.encode(), kind)

    assert (value.events if isinstance(value, Stream) else [value]) == [{expected: [expected]}]


def test_surrogate_as_bytes_is_not_utf8() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        decode_response(b'{"text":"\xed\xa0\x80"}', JSON)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_encoding_of_response_is_detected(encoding: str) -> None:
    value = {"text": "ä \U0001f600"}

    content = json.dumps(value, ensure_ascii=False).encode(encoding)

    assert decode_response(content, JSON) == value
