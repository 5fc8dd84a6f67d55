"""The process that parses replies, and its replacements."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from raggrpo_trainer.gateway.tool_parsing import (
    ParsedReply,
    ParserProcess,
    ParserUnavailable,
    SampledReply,
    ToolCall,
)

MakeParser = Callable[..., ParserProcess]


@pytest.fixture
async def make_parser(tmp_path) -> AsyncIterator[MakeParser]:
    parsers = []

    def make(kind: str = "", parse_seconds: float = 60) -> ParserProcess:
        module = "support.builders.trainer.scripted_parser_process"
        parser = ParserProcess(str(tmp_path), kind, module=module, parse_seconds=parse_seconds)
        parsers.append(parser)
        return parser

    yield make
    for parser in parsers:
        await parser.close()


def reply(text: str) -> SampledReply:
    return SampledReply(text, (1, 2), (3,), [], {})


def parsed(text: str) -> ParsedReply:
    return ParsedReply(text, "r", (ToolCall("f", "{}"),))


async def test_replies_are_parsed_by_one_process(make_parser, tmp_path):
    parser = make_parser()
    await parser.start()
    results = await asyncio.gather(*(parser.parse(reply(text)) for text in "abc"))
    assert results == [parsed(text) for text in "abc"]
    assert len(list(tmp_path.iterdir())) == 1


async def test_exited_process_is_replaced(make_parser, tmp_path):
    parser = make_parser()
    assert await parser.parse(reply("exits once")) == parsed("exits once")
    assert len(list(tmp_path.iterdir())) == 2


async def test_killed_idle_process_is_replaced(make_parser):
    parser = make_parser()
    await parser.start()
    parser._process.kill()
    await parser._process.wait()
    assert await parser.parse(reply("a")) == parsed("a")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("exits", "exited with code 9"), ("hangs", "timed out"), ("raises", "ValueError: no call")],
)
async def test_reply_that_cannot_be_parsed_is_plain_text(make_parser, text, problem):
    parser = make_parser(parse_seconds=2)
    result = await parser.parse(reply(text))
    assert result.content == text
    assert result.tool_calls == ()
    assert problem in result.problem
    assert await parser.parse(reply("a")) == parsed("a")


@pytest.mark.parametrize(
    ("kind", "problem"), [("exits-at-start", "code 3"), ("unknown", "TypeError: no such parser")]
)
async def test_process_that_cannot_start_is_reported(make_parser, kind, problem):
    with pytest.raises(ParserUnavailable, match=problem):
        await make_parser(kind).start()


@pytest.mark.parametrize("seconds", [0, 0.2])
async def test_canceled_call_does_not_answer_next_call(make_parser, seconds):
    parser = make_parser()
    if seconds:
        await parser.start()
    call = asyncio.create_task(parser.parse(reply("slow")))
    await asyncio.sleep(seconds)
    call.cancel()
    assert await parser.parse(reply("a")) == parsed("a")
