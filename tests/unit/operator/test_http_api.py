"""`HttpApi` with adversarial servers."""

import asyncio
from collections.abc import Iterator

import psutil
import pytest
from aiohttp import ClientSession

from raggrpo_operator.errors import AccessDenied, OperatorError
from raggrpo_operator.http_api import LIMITS, HttpApi, Limits
from raggrpo_operator.progress_client import ProgressClient
from raggrpo_operator.ray_jobs import RayJobs
from support.servers.adversarial_server import ANSWERS, BOMB, MIB, Send, adversarial_server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
MAX_BYTES = LIMITS.response_bytes
SECONDS = 0.3
SHORT = Limits(call_seconds=SECONDS, submit_seconds=2 * SECONDS, progress_seconds=SECONDS)
HANG_SECONDS = 30
"""A hundred times the limit of a call, because a slow machine may exceed that limit."""
MAX_MEMORY_BYTES = 64 * MIB


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    process = psutil.Process()
    idle = process.memory_info().rss
    yield
    assert process.memory_info().rss - idle < MAX_MEMORY_BYTES


OF_SUCCESS = ("no content", "invalid UTF-8")
"""Responses that are valid for calls which evaluate only the status code, such as a stop."""


@pytest.mark.row("E3")
@pytest.mark.parametrize("name", ANSWERS)
async def test_invalid_or_oversized_responses_are_treated_as_unreachable(
    name: str, session: ClientSession
) -> None:
    async with adversarial_server(ANSWERS[name]) as url:
        http = HttpApi(session, url, "s3cret", SHORT)
        for call in (
            RayJobs(http).status("j-a1", 1),
            RayJobs(http).environment("j-a1"),
            RayJobs(http).ray_version(),
            *([] if name in OF_SUCCESS else [RayJobs(http).stop("j-a1")]),
            RayJobs(http).submit("j-a1", "true", {}, {}),
        ):
            with pytest.raises(OperatorError) as caught:
                async with asyncio.timeout(HANG_SECONDS):
                    await call
            message = str(caught.value)
            assert message.isprintable()
            assert len(message) < 400
            assert "s3cret" not in message
        async with asyncio.timeout(HANG_SECONDS):
            assert await ProgressClient(http).read() is None
            await ProgressClient(http).dump_stacks()


async def test_compression_bomb_fixture_is_smaller_than_two_mib() -> None:
    assert len(BOMB) < 2 * MIB


async def test_concurrent_reads_of_adversarial_heads_use_bounded_memory(
    session: ClientSession,
) -> None:
    async def read(name: str) -> None:
        async with adversarial_server(ANSWERS[name]) as url:
            assert await ProgressClient(HttpApi(session, url, limits=SHORT)).read() is None

    async with asyncio.TaskGroup() as group:
        for name in ANSWERS:
            group.create_task(read(name))


async def test_response_of_maximum_size_is_accepted(session: ClientSession) -> None:
    async def answer(send: Send) -> None:
        await send(HEAD + b"Content-Length: %d\r\n\r\n" % MAX_BYTES + b"x" * MAX_BYTES)

    async with adversarial_server(answer) as url:
        answer = await HttpApi(session, url).call("GET", "/", seconds=10)

    assert (answer.status, len(answer.body)) == (200, MAX_BYTES)


async def test_redirect_is_not_followed(session: ClientSession) -> None:
    async def answer(send: Send) -> None:
        await send(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")

    async with adversarial_server(answer) as url:
        assert (await HttpApi(session, url).call("GET", "/", seconds=10)).status == 302


async def test_access_denied_excerpt_is_short_and_printable(session: ClientSession) -> None:
    async def answer(send: Send) -> None:
        body = b"\x1b]0;owned\x07\x1b[2J" + b"no " * 1000
        await send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with adversarial_server(answer) as url:
        with pytest.raises(AccessDenied, match="HTTP 403 no no no") as caught:
            await HttpApi(session, url).call("GET", "/", seconds=10)

    assert str(caught.value).isprintable()
    assert "owned" not in str(caught.value)
    assert len(str(caught.value)) < 400
