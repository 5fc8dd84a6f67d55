"""Messages for unusual statuses and broken connections, and whether a call is retried."""

import asyncio
import socket
import struct

import pytest
from starlette.responses import HTMLResponse, JSONResponse, Response

from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.json_service import ONE_TRY, JsonService, Request, RetryPolicy
from raggrpo_trainer.http.pool import HttpPool, HttpResponse
from support.processes.simulated_time import run_simulated
from support.servers.faulty_server import Received, Respond, serving

SECRET = "s3cret-token"


def make_service(http: HttpPool, url: str, retry: RetryPolicy = ONE_TRY) -> JsonService:
    return JsonService(http, url, headers={"Authorization": f"Bearer {SECRET}"},
                       timeout_seconds=30.0, max_concurrency=4, retry=retry)  # fmt: skip


async def failure_of(respond: Respond) -> CallFailed:
    async with serving(respond) as server:
        return await failure_at(server.url)


async def failure_at(url: str) -> CallFailed:
    http = HttpPool()
    try:
        with pytest.raises(CallFailed) as caught:
            await make_service(http, url).post(Request({}), lambda answer: answer)
    finally:
        await http.close()
    return caught.value


def make_responder(status: int, **headers: str) -> Respond:
    async def respond(_: Received) -> Response:
        response_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return Response(b"", status, headers=response_headers)

    return respond


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/chat/", "/chat/"),
        ("/chat/?key=abc#x", "/chat/"),
        (f"/chat/{SECRET}/", "/chat/***/"),
        ("https://user:pw@other.example/chat?key=abc", "https://other.example/chat"),
        ("/hooks/s3cr3tvalue/", "/hooks/(hidden)/"),
        ("https://other.example/hooks/s3cr3tvalue", "https://other.example/hooks/(hidden)"),
    ],
)
async def test_redirect_error_names_target_and_remedy_without_secret(
    location: str, shown: str
) -> None:
    failure = await failure_of(make_responder(307, location=location))
    assert failure.detail == f"307: the service has moved to {shown}; set url to this address"
    assert not failure.transient


async def test_secret_of_url_is_masked_when_response_repeats_it() -> None:
    async def respond(received: Received) -> Response:
        return Response(f"no such key: {received.query['api_key']}", 404)

    async with serving(respond) as server:
        failure = await failure_at(f"{server.url.rstrip('/')}/?api_key=horse-battery")
    assert failure.detail == "404 'no such key: ***'"


async def test_redirect_with_invalid_location_is_reported_with_status() -> None:
    failure = await failure_of(make_responder(307, location="http://[nowhere"))
    assert failure.detail == "307 ''"


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "ftp://other.example/chat",
        "http://169.254.169.254/latest",
        "http://[fe80::1%25eth0]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://metadata.google.internal./computeMetadata",
    ],
)
async def test_unsuitable_target_of_redirect_is_not_recommended(location: str) -> None:
    failure = await failure_of(make_responder(307, location=location))
    assert failure.detail == "307 ''"


async def test_long_number_is_reported_without_hint_about_interpreter() -> None:
    async def respond(_: Received) -> Response:
        return Response(b'{"score": %s}' % (b"1" * 5000), media_type="application/json")

    failure = await failure_of(respond)
    assert failure.cause is FailureCause.BAD_JSON
    assert failure.detail == "a number in the response has too many digits"


@pytest.mark.parametrize("status", [200, 204])
async def test_empty_response_is_reported_as_bad_json(status: int) -> None:
    failure = await failure_of(make_responder(status))
    assert failure.cause is FailureCause.BAD_JSON
    assert failure.detail == f"{status}: empty response body"


@pytest.mark.parametrize("status", [408, 425, 429, 503])
async def test_transient_http_statuses_are_retried(status: int) -> None:
    assert (await failure_of(make_responder(status))).transient


@pytest.mark.parametrize("end", ["reset", "end of file"])
async def test_interrupted_tls_handshake_is_retried(end: str) -> None:
    async def close_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        if end == "reset":
            no_linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, no_linger
            )
        writer.close()

    server = await asyncio.start_server(close_connection, "127.0.0.1", 0)
    async with server:
        failure = await failure_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert failure.cause is FailureCause.CONNECTION_LOST
    assert failure.transient
    assert "TLS handshake" in failure.detail


async def test_html_response_is_retried_after_earlier_success() -> None:
    async def respond(received: Received) -> Response:
        if received.number == 1:
            return JSONResponse({"ok": True})
        return HTMLResponse("<html>Maintenance</html>")

    http = HttpPool()
    async with serving(respond) as server:
        service = make_service(http, server.url)
        outcomes = []
        for _ in range(3):
            try:
                await service.post(Request({}), lambda answer: answer)
                outcomes.append("answered")
            except CallFailed as failure:
                outcomes.append("transient" if failure.transient else "permanent")
    await http.close()
    assert outcomes == ["permanent", "answered", "transient"]


class BusyPool(HttpPool):
    """HTTP pool whose first response is 429 with a Retry-After header."""

    def __init__(self, retry_after: str) -> None:
        self.retry_after = retry_after
        self.sent_at: list[float] = []

    async def send(self, *_: object) -> HttpResponse:
        self.sent_at.append(asyncio.get_running_loop().time())
        if len(self.sent_at) == 1:
            return HttpResponse(429, b"", "utf-8", retry_after=self.retry_after)
        return HttpResponse(200, b"{}", "utf-8")


@pytest.mark.parametrize(
    ("retry_after", "minimum", "maximum"),
    [
        ("7", 7.0, 7.1),
        ("3600", 30.0, 30.1),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 30.0, 30.1),
        ("Thu, 01 Jan 2015 00:00:00 GMT", 0.0, 0.1),
        ("soon", 0.0, 0.1),
        ("Fri, 31 Dec 9999 23:59:59 +99999999999999999999", 0.0, 0.1),
        ("1 Jan 99999999999999999999 00:00:00 GMT", 0.0, 0.1),
    ],
)
def test_retry_honors_retry_after_header_up_to_timeout(
    retry_after: str, minimum: float, maximum: float
) -> None:
    http = BusyPool(retry_after)

    async def call() -> None:
        service = make_service(http, "http://kb/", RetryPolicy(1, 0.01))
        await service.post(Request({}), lambda answer: answer)

    run_simulated(call())
    first, second = http.sent_at
    assert minimum <= second - first <= maximum
