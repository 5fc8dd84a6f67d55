"""A raw TCP server with malformed, endless and missing responses."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

MIB = 1 << 20
Say = Callable[[bytes], Awaitable[None]]
Answer = Callable[[Say], Awaitable[None]]
DETAILS = b'{"status": "RUNNING"}'
BOMB = gzip.compress(b"[" * (256 * MIB), compresslevel=1)


def _answer(*headers: bytes, status: bytes = b"200 OK", body: bytes = b"") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"", body])


def _at_once(raw: bytes) -> Answer:
    async def answer(say: Say) -> None:
        await say(raw)

    return answer


def _for_ever(start: bytes, again: bytes, pause: float = 0.0) -> Answer:
    async def answer(say: Say) -> None:
        await say(start)
        while True:
            await say(again)
            await asyncio.sleep(pause)

    return answer


async def _silent(_: Say) -> None:
    await asyncio.Event().wait()


async def _gone(_: Say) -> None:
    pass


JSON = b"Content-Type: application/json"
CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: %d" % len(DETAILS)
ANSWERS: Mapping[str, Answer] = {
    "silent": _silent,
    "closes at once": _gone,
    "silent after its headers": _for_ever(_answer(JSON), b"", 0.05),
    "body without an end": _for_ever(_answer(JSON), b"[" * MIB),
    "drips its body": _for_ever(_answer(JSON), b" ", 0.02),
    "drips its headers": _for_ever(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.02),
    "headers without an end": _for_ever(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000),
    "a header without an end": _for_ever(b"HTTP/1.1 200 OK\r\nX: ", b"y" * MIB),
    "a reason without an end": _for_ever(b"HTTP/1.1 200 ", b"y" * MIB),
    "chunks without an end": _for_ever(_answer(CHUNKED), b"400\r\n" + b"[" * 1024 + b"\r\n"),
    "a chunk's size without an end": _for_ever(_answer(CHUNKED), b"0" * MIB),
    "a chunk's extension without an end": _for_ever(_answer(CHUNKED, body=b"1;"), b"e" * MIB),
    "trailers without an end": _for_ever(_answer(CHUNKED, body=b"0\r\n"), b"X: y\r\n" * 10_000),
    "nonsense for chunks": _at_once(_answer(CHUNKED, body=b"zz\r\n" + DETAILS)),
    "a storm of 1xx": _for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "another protocol": _at_once(_answer(b"Upgrade: x", b"Connection: upgrade", status=b"101 X")),
    "a bomb in gzip": _at_once(
        _answer(b"Content-Encoding: gzip", b"Content-Length: %d" % len(BOMB), body=BOMB)
    ),
    "a bomb in gzip that says identity first": _at_once(
        _answer(b"Content-Encoding: identity", b"Content-Encoding: gzip", body=BOMB)
    ),
    "more bytes than it promised": _for_ever(_answer(LENGTH, body=DETAILS), b"HTTP" * MIB),
    "fewer bytes than it promised": _at_once(_answer(b"Content-Length: 999", body=DETAILS)),
    "a terabyte promised": _at_once(_answer(b"Content-Length: 1000000000000", body=DETAILS)),
    "a negative length": _at_once(_answer(b"Content-Length: -1", body=DETAILS)),
    "two lengths": _at_once(_answer(b"Content-Length: 1", LENGTH, body=DETAILS)),
    "a redirection to itself": _at_once(
        _answer(b"Location: /", LENGTH, status=b"302 Found", body=DETAILS)
    ),
    "no content": _at_once(_answer(status=b"204 No Content")),
    "no HTTP": _at_once(b"SSH-2.0-x\r\n" * 100),
    "zero bytes": _at_once(bytes(MIB)),
    "no UTF-8": _at_once(_answer(b"Content-Length: 4", body=b"\xff\xfe\x00\x80")),
    "headers that are no UTF-8": _at_once(_answer(b"X-\xff: \xfe\r\nContent-Length: 1", body=b"[")),
    "a status of five digits": _at_once(_answer(status=b"20000 OK", body=DETAILS)),
    "an error in escape sequences": _at_once(
        _answer(status=b"500 \x1b[2J", body=b"\x1b]0;title\x07\x1b[31m\xe2\x80\xae\x00red\r\n")
    ),
}
"""Responses that a caller must treat as no response."""


@asynccontextmanager
async def adversarial_server(answer: Answer) -> AsyncIterator[str]:
    """Answer every request with `answer` on a free port of 127.0.0.1; yield the address."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)

        async def say(raw: bytes) -> None:
            writer.write(raw)
            await writer.drain()

        with suppress(OSError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(say)
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
