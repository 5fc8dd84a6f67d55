"""Judges, reward services, agents and forwarded endpoints that exhaust memory or time."""

import asyncio
from collections.abc import Iterator, Mapping

import aiohttp
import psutil
import pytest

from raggrpo_trainer.call_failures import CallFailed
from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.model_names import Endpoint
from raggrpo_trainer.gateway.trajectory import TrajectoryCause
from raggrpo_trainer.gateway.working_time import Timer
from raggrpo_trainer.http.json_service import ONE_TRY, JsonService, Request
from raggrpo_trainer.http.pool import HttpPool
from support.builders.trainer.gateway_models import USER, byte_tokenizer, in_turn
from support.servers.adversarial_server import (
    ANSWERS,
    JSON,
    MIB,
    Answer,
    adversarial_server,
    endless,
)
from support.servers.served_gateway import served_gateway

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
SECRET = "secret-of-the-service"
SECONDS = 0.5
HANG_SECONDS = 30
MAX_MEMORY_BYTES = 192 * MIB
"""The largest response as bytes, text and values."""
CHAT = {"model": "judge", "messages": [USER]}


def fixed(head: bytes, body: bytes = b"", *headers: bytes) -> Answer:
    lines = [b"HTTP/1.1 " + head, b"Content-Length: %d" % len(body), *headers]
    return lambda send: send(b"\r\n".join([*lines, b"", body]))


def moved(target: bytes) -> Answer:
    return fixed(b"302 Found", b"", b"Location: " + target)


OTHERS: Mapping[str, Answer] = {
    "endless events": endless(EVENTS, b"data: {}\n\n" * 10_000),
    "slow events": endless(EVENTS, b": ping\n\n", 0.02),
    "redirect to a file": moved(b"file:///etc/passwd"),
    "redirect to metadata": moved(b"http://169.254.169.254/latest/meta-data/"),
    "redirect to invalid URL": moved(b"http://["),
    "deep JSON": fixed(b"200 OK", b"[" * 100_000 + b"]" * 100_000, JSON),
    "long number": fixed(b"200 OK", b'{"a": ' + b"1" * 5000 + b"}", JSON),
    "zstd": fixed(b"200 OK", b"\x28\xb5\x2f\xfd" + bytes(100), b"Content-Encoding: zstd"),
}
"""Responses that a client must treat as a failed call, besides those of `ANSWERS`."""
ACCEPTED: Mapping[str, Answer] = {
    "duplicate keys": fixed(b"200 OK", b'{"a": 1, "a": 2}', JSON),
    "cookies": fixed(b"200 OK", b'{"a": 2}', JSON, b"Set-Cookie: a=b; Domain=127.0.0.1; Path=/"),
}
FAILED = {**ANSWERS, **OTHERS}


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    process = psutil.Process()
    idle = process.memory_info().rss
    yield
    assert process.memory_info().rss - idle < MAX_MEMORY_BYTES


async def call(url: str) -> object:
    http = HttpPool()
    service = JsonService(
        http,
        url,
        headers={"authorization": f"Bearer {SECRET}"},
        timeout_seconds=SECONDS,
        max_concurrency=1,
        retry=ONE_TRY,
    )
    try:
        async with asyncio.timeout(HANG_SECONDS):
            return await service.post(Request({}), lambda value: value)
    finally:
        await http.close()


@pytest.mark.parametrize(
    "name", [each for each in FAILED if each != "more bytes than Content-Length"]
)
async def test_call_of_adversarial_service_fails(name: str) -> None:
    async with adversarial_server(FAILED[name]) as url:
        with pytest.raises(CallFailed) as caught:
            await call(url)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ACCEPTED)
async def test_call_reads_the_last_of_equal_keys_and_no_cookies(name: str) -> None:
    async with adversarial_server(ACCEPTED[name]) as url:
        assert await call(url) == {"a": 2}


async def test_cookie_of_a_service_is_not_sent_back() -> None:
    received: list[Mapping[str, str]] = []
    http = HttpPool()
    async with adversarial_server(ACCEPTED["cookies"]) as url:
        for _ in range(2):
            async with await http.open("GET", url, None, {}, None) as response:
                received.append(response.request_info.headers)
    await http.close()
    assert all("Cookie" not in each for each in received)


UNREADABLE_HEADERS: Mapping[str, Answer] = {
    "type in no encoding": fixed(b"200 OK", b"{}", b"Content-Type: \xff\xfe"),
    "id in no encoding": fixed(b"200 OK", b"{}", b"X-Request-Id: \xff\xfe"),
    "id with control characters": fixed(b"200 OK", b"{}", b"X-Request-Id: \x1b[2J"),
    "long id": fixed(b"200 OK", b"{}", b"X-Request-Id: " + b"x" * 8000),
}


@pytest.mark.parametrize("name", {**FAILED, **ACCEPTED, **UNREADABLE_HEADERS})
async def test_forwarded_call_ends_in_time(name: str) -> None:
    """A response is passed on or rejected, and the gateway serves other calls."""
    answers = {**FAILED, **ACCEPTED, **UNREADABLE_HEADERS}
    async with adversarial_server(answers[name]) as url:
        forwarder = Forwarder([Endpoint(("judge",), url, SECRET)])
        says = in_turn(byte_tokenizer(), "first")
        async with served_gateway(says, forwarder=forwarder) as served:
            trajectory = served.open(timer=Timer(SECONDS))
            status = 0
            body = b""
            async with asyncio.timeout(HANG_SECONDS):
                try:
                    url = served.url + "/chat/completions"
                    headers = {"Authorization": "Bearer key"}
                    async with served.http.post(url, json=CHAT, headers=headers) as response:
                        status = response.status
                        async for chunk in response.content.iter_any():
                            body = (body + chunk)[:MIB]
                except aiohttp.ClientError:
                    pass  # the gateway cut the response off
                served.open("other")
                reply = await served.post({"model": "any", "messages": [USER]}, key="other")
            assert reply[0] == 200
    assert status != 500 or name == "error with escape sequences"
    if failure := trajectory.failure:
        assert failure.cause in (TrajectoryCause.FORWARD_FAILED, TrajectoryCause.FORWARD_TIMEOUT)
        assert failure.detail.isprintable()
        assert SECRET not in failure.detail
    else:
        assert 200 <= status < 300
