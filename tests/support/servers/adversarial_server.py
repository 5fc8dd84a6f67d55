"""A raw TCP server with malformed, endless and missing responses."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

MIB = 1 << 20
Send = Callable[[bytes], Awaitable[None]]
Answer = Callable[[Send], Awaitable[None]]
DETAILS = b'{"status": "RUNNING"}'
BOMB = gzip.compress(b"[" * (256 * MIB), compresslevel=1)


def _answer(*headers: bytes, status: bytes = b"200 OK", body: bytes = b"") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"", body])


def _immediate(raw: bytes) -> Answer:
    async def answer(send: Send) -> None:
        await send(raw)

    return answer


def endless(start: bytes, again: bytes, pause: float = 0.0) -> Answer:
    """Return an answer that sends `start`, and then `again` without end."""

    async def answer(send: Send) -> None:
        await send(start)
        while True:
            await send(again)
            await asyncio.sleep(pause)

    return answer


async def _silent(_: Send) -> None:
    await asyncio.Event().wait()


async def _closed(_: Send) -> None:
    pass


JSON = b"Content-Type: application/json"
CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: %d" % len(DETAILS)
ANSWERS: Mapping[str, Answer] = {
    "silent": _silent,
    "closed immediately": _closed,
    "silent after headers": endless(_answer(JSON), b"", 0.05),
    "endless body": endless(_answer(JSON), b"[" * MIB),
    "slow body": endless(_answer(JSON), b" ", 0.02),
    "slow headers": endless(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.02),
    "endless headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000),
    "endless header": endless(b"HTTP/1.1 200 OK\r\nX: ", b"y" * MIB),
    "endless reason": endless(b"HTTP/1.1 200 ", b"y" * MIB),
    "endless chunks": endless(_answer(CHUNKED), b"400\r\n" + b"[" * 1024 + b"\r\n"),
    "endless chunk size": endless(_answer(CHUNKED), b"0" * MIB),
    "endless chunk extension": endless(_answer(CHUNKED, body=b"1;"), b"e" * MIB),
    "endless trailers": endless(_answer(CHUNKED, body=b"0\r\n"), b"X: y\r\n" * 10_000),
    "malformed chunks": _immediate(_answer(CHUNKED, body=b"zz\r\n" + DETAILS)),
    "endless 1xx responses": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "protocol upgrade": _immediate(_answer(b"Upgrade: x", b"Connection: upgrade", status=b"101 X")),
    "gzip bomb": _immediate(
        _answer(b"Content-Encoding: gzip", b"Content-Length: %d" % len(BOMB), body=BOMB)
    ),
    "gzip bomb after identity": _immediate(
        _answer(b"Content-Encoding: identity", b"Content-Encoding: gzip", body=BOMB)
    ),
    "more bytes than Content-Length": endless(_answer(LENGTH, body=DETAILS), b"HTTP" * MIB),
    "fewer bytes than Content-Length": _immediate(_answer(b"Content-Length: 999", body=DETAILS)),
    "Content-Length of a terabyte": _immediate(
        _answer(b"Content-Length: 1000000000000", body=DETAILS)
    ),
    "negative Content-Length": _immediate(_answer(b"Content-Length: -1", body=DETAILS)),
    "two Content-Length headers": _immediate(_answer(b"Content-Length: 1", LENGTH, body=DETAILS)),
    "redirect to itself": _immediate(
        _answer(b"Location: /", LENGTH, status=b"302 Found", body=DETAILS)
    ),
    "no content": _immediate(_answer(status=b"204 No Content")),
    "not HTTP": _immediate(b"SSH-2.0-x\r\n" * 100),
    "zero bytes": _immediate(bytes(MIB)),
    "invalid UTF-8": _immediate(_answer(b"Content-Length: 4", body=b"\xff\xfe\x00\x80")),
    "headers with invalid UTF-8": _immediate(
        _answer(b"X-\xff: \xfe\r\nContent-Length: 1", body=b"[")
    ),
    "status of five digits": _immediate(_answer(status=b"20000 OK", body=DETAILS)),
    "error with escape sequences": _immediate(
        _answer(status=b"500 \x1b[2J", body=b"\x1b]0;title\x07\x1b[31m\xe2\x80\xae\x00red\r\n")
    ),
}
"""Responses that a client must treat as a failed request."""


@asynccontextmanager
async def adversarial_server(answer: Answer) -> AsyncIterator[str]:
    """Serve `answer` for every request on a free port of 127.0.0.1; yield the address."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)

        async def send(raw: bytes) -> None:
            writer.write(raw)
            await writer.drain()

        with suppress(OSError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(send)
        writer.close()
        running.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
