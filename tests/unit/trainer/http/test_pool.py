import asyncio
import codecs

import pytest

from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http import pool
from raggrpo_trainer.http.json_service import JsonService, Request, RetryPolicy
from raggrpo_trainer.http.pool import HttpPool, HttpResponse, proxy_for


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "http://kb.example/", None),
        ({"http_proxy": "http://proxy:3128"}, "http://kb.example/", "http://proxy:3128"),
        ({"http_proxy": "proxy:3128"}, "http://kb.example/", "http://proxy:3128"),
        ({"http_proxy": "http://proxy:3128"}, "https://kb.example/", None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://kb.example/", "http://proxy:3128"),
        ({"all_proxy": "http://proxy:3128"}, "https://kb.example/", "http://proxy:3128"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": ".svc"}, "http://kb.team.svc/", None),
    ],
)
def test_environment_proxy_is_used_unless_host_is_excluded(
    environment: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert proxy_for(url) == proxy


async def start_server(answer: bytes) -> tuple[asyncio.Server, str, list[bytes]]:
    """Start a server that always sends `answer`; return it, its URL and received heads."""
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?key=hidden", heads


def make_service(http: HttpPool, url: str) -> JsonService:
    return JsonService(
        http,
        url,
        headers={},
        timeout_seconds=5,
        max_concurrency=1,
        retry=RetryPolicy(retries=0),
    )


@pytest.mark.parametrize(
    ("answer", "cause", "detail"),
    [
        (b"SSH-2.0-OpenSSH\r\n", FailureCause.CONNECTION_LOST, "Bad status line"),
        (b"", FailureCause.CONNECTION_LOST, "the server closed the connection without a response"),
        (b"HTTP/1.1 200 OK\r\nContent-", FailureCause.CONNECTION_LOST, "the server closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", FailureCause.CONNECTION_LOST, "2 of 9"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
            FailureCause.BAD_JSON,
            "gzip",
        ),
    ],
)
async def test_malformed_response_is_reported_in_one_line_without_url(
    answer: bytes, cause: FailureCause, detail: str
) -> None:
    http = HttpPool()
    server, url, _ = await start_server(answer)
    with pytest.raises(CallFailed, match=detail) as failed:
        await make_service(http, url).post_once(Request({}), lambda answer: answer, 5)
    await http.close()
    server.close()

    assert failed.value.cause is cause
    assert "hidden" not in failed.value.detail
    assert "\n" not in failed.value.detail


async def test_connections_closed_by_server_are_replaced() -> None:
    http = HttpPool()
    server, url, heads = await start_server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    for _ in range(20):
        assert await make_service(http, url).post_once(Request({}), lambda answer: answer, 5) == {}
    await http.close()
    server.close()

    assert len(heads) == 20


async def test_large_bodies_are_read_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LARGE_BODIES", 2)
    sizes = [pool.SMALL_BODY_BYTES + 1, pool.SMALL_BODY_BYTES - 1]  # and a space
    large, small = [f'"{"a" * (size - 2)}"'.encode() for size in sizes]
    may_end = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        body = small if path == b"/small" else large
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (len(body) + 1) + body)
        if path == b"/open":
            await may_end.wait()
        writer.write(b" ")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    http = HttpPool()

    async def call(path: str, seconds: float = 30) -> int:
        return await make_service(http, url + path).post_once(Request({}), len, seconds)

    opened = [asyncio.create_task(call("/open")) for _ in range(2)]
    await asyncio.sleep(1)
    assert await call("/small") == len(small) - 2
    with pytest.raises(CallFailed, match="no response within 1 s"):
        await call("/large", 1)
    waiting = asyncio.create_task(call("/large"))
    may_end.set()
    assert await asyncio.gather(*opened, waiting) == [len(large) - 2] * 3
    assert await asyncio.gather(*(call("/large") for _ in range(4))) == [len(large) - 2] * 4
    await http.close()
    server.close()


async def test_cookies_are_ignored() -> None:
    http = HttpPool()
    server, url, heads = await start_server(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: server=1\r\nContent-Length: 2\r\n\r\n{}"
    )
    url = url.replace("127.0.0.1", "localhost")  # clients never send cookies to IP addresses
    for _ in range(2):
        await make_service(http, url).post_once(Request({}), lambda answer: answer, 5)
    await http.close()
    server.close()

    assert [b"ookie" in head for head in heads] == [False, False]


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "no-such-encoding", "undefined", "idna", "punycode", "IDNA", "zlib_codec", "a\0b"],
)
def test_response_text_is_decoded_with_unsuitable_encoding(encoding: str) -> None:
    assert HttpResponse(500, b"down \xff", encoding).text == "down \ufffd"


@pytest.mark.parametrize("encoding", ["latin-1", "GBK", "utf-16", "windows-1252"])
def test_response_text_is_decoded_with_its_encoding(encoding: str) -> None:
    assert HttpResponse(500, "é".encode(encoding), encoding).text == "é"


def test_unknown_encodings_are_not_looked_up() -> None:
    searched: list[str] = []
    codecs.register(search := lambda name: searched.append(name))
    try:
        assert HttpResponse(500, b"down", "x-unknown-encoding").text == "down"
    finally:
        codecs.unregister(search)
    assert searched == []


async def test_response_that_no_parser_expects_fails_only_its_call() -> None:
    http = HttpPool()
    server, url, _ = await start_server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
    with pytest.raises(CallFailed, match=r"cannot be parsed \(TypeError: ") as failed:
        await make_service(http, url).post_once(Request({}), lambda answer: answer["a"], 5)
    await http.close()
    server.close()

    assert failed.value.cause is FailureCause.BAD_JSON
