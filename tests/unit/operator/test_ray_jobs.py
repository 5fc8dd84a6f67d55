import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from aiohttp import ClientSession

from raggrpo_operator.core.lifecycle.observed import SubmissionStatus
from raggrpo_operator.errors import AccessDenied, OperatorError
from raggrpo_operator.http_api import HttpApi
from raggrpo_operator.progress_client import ProgressClient
from raggrpo_operator.ray_jobs import RayJobs, last_lines

Answer = tuple[int, Any]


class Head:
    """A served head with the requests it has received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.tokens: list[str | None] = []


@asynccontextmanager
async def make_head(answer: Callable[[str, str], Answer]) -> AsyncIterator[Head]:
    """Serve (method, path) → (status, JSON) on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            head.calls.append((self.command, self.path))
            head.bodies.append(json.loads(self.rfile.read(length) or "null"))
            head.tokens.append(self.headers.get("Authorization"))
            status, body = answer(self.command, self.path)
            text = body if isinstance(body, str) else json.dumps(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    head = Head(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield head
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def knows(status: str, **more: Any) -> Callable[[str, str], Answer]:
    return lambda method, path: (200, {"status": status, **more})


def unknown(method: str, path: str) -> Answer:
    return (404, "not found") if method == "GET" else (200, {"submission_id": "j-a1"})


async def test_submission_carries_environment_and_metadata(session: ClientSession) -> None:
    async with make_head(unknown) as head:
        jobs = RayJobs(HttpApi(session, head.url))
        await jobs.submit("j-a1", "exec true", {"A": "1"}, {"attempt": "1"})

    assert head.calls == [("GET", "/api/jobs/j-a1"), ("POST", "/api/jobs/")]
    assert head.bodies[1] == {
        "submission_id": "j-a1",
        "entrypoint": "exec true",
        "metadata": {"attempt": "1"},
        "runtime_env": {"env_vars": {"A": "1"}},
    }


async def test_job_submission_is_idempotent(session: ClientSession) -> None:
    async with make_head(knows("RUNNING")) as head:
        await RayJobs(HttpApi(session, head.url)).submit("j-a1", "exec true", {}, {})
    assert [method for method, _ in head.calls] == ["GET"]


async def test_status_reports_driver_exit_code(session: ClientSession) -> None:
    message = "failed, last available logs:\n\x1b[36m(Rank pid=7)\x1b[0m boom\n\n"
    async with make_head(knows("FAILED", driver_exit_code=17, message=message)) as head:
        attempt = await RayJobs(HttpApi(session, head.url)).status("j-a1", 1)

    assert attempt is not None
    assert (attempt.status, attempt.exit_code) == (SubmissionStatus.FAILED, 17)
    assert attempt.message == "failed, last available logs:\n(Rank pid=7) boom"


async def test_status_reports_out_of_memory_kill_by_ray(
    session: ClientSession,
) -> None:
    line = "1 worker(s) were killed due to the node running low on memory. Memory was 22.44GB"
    message = "\n".join(["Job supervisor died", line, *(f"9{n} 0.1 python" for n in range(20))])
    async with make_head(knows("FAILED", message=message)) as head:
        attempt = await RayJobs(HttpApi(session, head.url)).status("j-a1", 1)

    assert attempt is not None
    assert (attempt.is_out_of_memory, attempt.message) == (True, line)


async def test_status_of_unknown_submission_is_none(session: ClientSession) -> None:
    async with make_head(unknown) as head:
        attempt = await RayJobs(HttpApi(session, head.url)).status("j-a1", 1)
    assert attempt is None


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ((200, {"version": "4", "ray_version": "2.60.0"}), "2.60.0"),
        ((200, {"version": "4"}), ""),
        ((404, "not found"), ""),
    ],
)
async def test_ray_version_is_read_from_head(
    session: ClientSession, answer: Answer, version: str
) -> None:
    async with make_head(lambda method, path: answer) as head:
        assert await RayJobs(HttpApi(session, head.url)).ray_version() == version
    assert head.calls == [("GET", "/api/version")]


async def test_stop_of_unknown_submission_succeeds(session: ClientSession) -> None:
    async with make_head(lambda method, path: (404, "")) as head:
        await RayJobs(HttpApi(session, head.url)).stop("j-a1")
    assert head.calls == [("POST", "/api/jobs/j-a1/stop")]


async def test_token_is_sent_and_rejection_raises_access_denied(session: ClientSession) -> None:
    async with make_head(lambda method, path: (401, "no")) as head:
        jobs = RayJobs(HttpApi(session, head.url, "s3cret"))
        with pytest.raises(AccessDenied, match="401") as caught:
            await jobs.status("j-a1", 1)

    assert head.tokens == ["Bearer s3cret"]
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("verb", ["submit", "status", "stop"])
async def test_error_message_quotes_head_response(verb: str, session: ClientSession) -> None:
    async with make_head(lambda method, path: (500, "no available agent")) as head:
        jobs = RayJobs(HttpApi(session, head.url))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "submit": lambda: jobs.submit("j-a1", "true", {}, {}),
            "status": lambda: jobs.status("j-a1", 1),
            "stop": lambda: jobs.stop("j-a1"),
        }
        with pytest.raises(OperatorError, match="no available agent"):
            await calls[verb]()


async def test_invalid_json_raises_operator_error(session: ClientSession) -> None:
    async with make_head(lambda method, path: (200, "<html>")) as head:
        jobs = RayJobs(HttpApi(session, head.url))
        with pytest.raises(OperatorError, match="Invalid JSON"):
            await jobs.status("j-a1", 1)


async def test_unreachable_head_raises_operator_error(session: ClientSession) -> None:
    async with make_head(unknown) as head:
        pass
    jobs = RayJobs(HttpApi(session, head.url))
    with pytest.raises(OperatorError):
        await jobs.status("j-a1", 1)


def test_failure_message_contains_last_log_lines() -> None:
    assert last_lines("\n".join(map(str, range(9)))).splitlines() == ["4", "5", "6", "7", "8"]
    assert len(last_lines("x" * 5000)) == 300


@pytest.mark.parametrize(
    "answer", [(503, {}), (200, "no JSON"), (200, {"attempt": 1}), (200, "x" * 70_000)]
)
async def test_unreadable_progress_is_returned_as_none(
    answer: Answer, session: ClientSession
) -> None:
    async with make_head(lambda method, path: answer) as head:
        progress = await ProgressClient(HttpApi(session, head.url)).read()
    assert progress is None


@pytest.mark.parametrize("code", [401, 403])
async def test_progress_with_rejected_token_raises_access_denied(
    code: int, session: ClientSession
) -> None:
    async with make_head(lambda method, path: (code, {})) as head:
        client = ProgressClient(HttpApi(session, head.url, "old"))
        with pytest.raises(AccessDenied, match=f"/progress: HTTP {code}"):
            await client.read()


async def test_progress_ignores_unknown_fields(session: ClientSession) -> None:
    body = {"attempt": 2, "stage": "Training", "step": 7, "fromTheFuture": 1}
    async with make_head(lambda method, path: (200, body)) as head:
        progress = await ProgressClient(HttpApi(session, head.url, "t")).read()

    assert progress is not None
    assert (progress.attempt, progress.step) == (2, 7)
    assert head.tokens == ["Bearer t"]


async def test_stack_dump_failure_is_ignored(session: ClientSession) -> None:
    async with make_head(unknown) as head:
        pass
    await ProgressClient(HttpApi(session, head.url)).dump_stacks()
