"""The door to a job's servers, against a raw socket that keeps to no protocol."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import psutil
import pytest
import pytest_asyncio
from aiohttp import ClientSession

from raggrpo_operator.errors import AccessRefused, Unreachable
from raggrpo_operator.http_api import MAX_BODY_BYTES, HttpApi, open_session

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]
SECONDS = 0.5
BOMB = gzip.compress(b"[" * 2**27, compresslevel=1)
"""128 MiB once unpacked."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def a_server(behave: Behaviour) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await behave(writer)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest_asyncio.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with open_session() as opened:
        yield opened


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"\r\n")
    while True:
        writer.write(b"[" * 65536)
        await writer.drain()


async def endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"[" * 65536 + b"\r\n")
        await writer.drain()


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    number = 0
    while True:
        number += 1
        writer.write(b"X-%d: %s\r\n" % (number, b"x" * 1000))
        await writer.drain()


async def endless_header(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"X: ")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_promises(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()


async def dripping_body(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Content-Length: 1000\r\n\r\n")
    await dripping(writer)


async def dripping_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"X: ")
    await dripping(writer)


async def dripping(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def silence(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def bomb(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB))
    writer.write(BOMB)
    await writer.drain()


async def half_a_body(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Content-Length: 1000\r\n\r\n{")
    await writer.drain()


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x1b[31mSSH-2.0-x\r\n\r\n")
    await writer.drain()


async def bad_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nzz\r\n")
    await writer.drain()


@pytest.mark.parametrize(
    "behave",
    [
        endless_body, endless_chunks, endless_headers, endless_header, endless_promises,
        dripping_body, dripping_headers, silence, bomb, half_a_body, no_http, bad_chunks,
    ],
)  # fmt: skip
async def test_what_is_no_answer_is_unreachable_within_its_time_and_memory(
    behave: Behaviour, session: ClientSession
) -> None:
    process = psutil.Process()
    idle = process.memory_info().rss
    async with a_server(behave) as url:
        api, began = HttpApi(session, url), time.monotonic()
        with pytest.raises(Unreachable) as caught:
            await api.call("GET", "/api/jobs/a", seconds=SECONDS)
        lasted = time.monotonic() - began

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert process.memory_info().rss - idle < 32 * 2**20
    assert lasted < 4 * SECONDS  # the limit of the call, not of the machine


async def test_an_answer_may_be_as_large_as_the_limit(session: ClientSession) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % MAX_BODY_BYTES + b"x" * MAX_BODY_BYTES)
        await writer.drain()

    async with a_server(answer) as url:
        found = await HttpApi(session, url).call("GET", "/", seconds=10)

    assert (found.status, len(found.body)) == (200, MAX_BODY_BYTES)


async def test_a_redirect_leads_nowhere(session: ClientSession) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with a_server(answer) as url:
        assert (await HttpApi(session, url).call("GET", "/", seconds=10)).status == 302


async def test_what_a_refusal_says_is_cut_and_cleaned(session: ClientSession) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        body = b"\x1b]0;owned\x07\x1b[2J" + b"no " * 1000
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with a_server(answer) as url:
        with pytest.raises(AccessRefused, match="HTTP 403 no no no") as caught:
            await HttpApi(session, url).call("GET", "/", seconds=10)

    assert str(caught.value).isprintable()
    assert "owned" not in str(caught.value)
    assert len(str(caught.value)) < 400
