"""Applications as HTTP services, with a real gateway and a scripted engine."""

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.json_service import ONE_TRY, JsonService, Request
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.rollout.agents.http_agent import MAX_CONCURRENCY, HttpAgent
from raggrpo_trainer.rollout.agents.runner import AgentUnavailable
from support.servers.faulty_server import Received, serving


async def run_once(url: str, request: Any, *, sends_trace: bool = True) -> tuple[str, Any]:
    agent = HttpAgent(url, "http://gateway/v1", Outages(), sends_trace=sends_trace)
    try:
        async with agent.slot() as slot:
            return slot.key, await slot.run(request)
    finally:
        await agent.close()


async def test_trace_id_is_key_of_sample() -> None:
    async def answer(_: Received) -> Response:
        return JSONResponse({"answer": "right"})

    async with serving(answer) as server:
        key, response = await run_once(server.url, {"question": "q"})
        other, _ = await run_once(server.url, {"question": "q"}, sends_trace=False)

    assert response == {"answer": "right"}
    first, second = server.requests
    assert first.body == {"question": "q"}
    version, trace, parent, flags = first.headers["traceparent"].split("-")
    assert (version, trace, len(parent), flags) == ("00", key, 16, "01")
    assert "traceparent" not in second.headers
    assert other != key


@pytest.mark.parametrize(("concurrency", "expected"), [(3, 3), (10_000, MAX_CONCURRENCY)])
async def test_runs_at_the_same_time_are_limited(concurrency: int, expected: int) -> None:
    agent = HttpAgent(
        "http://127.0.0.1:9/", "", Outages(), sends_trace=False, concurrency=concurrency
    )
    running: set[str] = set()

    async def hold() -> None:
        async with agent.slot() as slot:
            running.add(slot.key)
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold()) for _ in range(expected + 5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(running) == expected
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await agent.close()


async def test_error_of_application_is_raised_not_an_outage() -> None:
    async def fail(_: Received) -> Response:
        return JSONResponse({"error": "bug"}, 500)

    async with serving(fail) as server:
        with pytest.raises(CallFailed, match="500") as error:
            await run_once(server.url, {})

    assert (error.value.cause, error.value.transient) == (FailureCause.RAISED, False)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_failure_of_one_of_several_replicas_may_be_transient(is_lost: bool) -> None:
    async def answer(received: Received) -> Response:
        if received.method == "GET":
            return JSONResponse({}, 405)
        return broken_response() if is_lost else JSONResponse({}, 503)

    async with serving(answer) as server:
        with pytest.raises(CallFailed) as error:
            await run_once(server.url, {})

    expected = FailureCause.CONNECTION_LOST if is_lost else FailureCause.RAISED
    assert (error.value.cause, error.value.transient) == (expected, True)


def broken_response() -> Response:
    """Return a response that ends before its announced length."""
    return Response(b"{", headers={"content-length": "9"})


async def test_failure_has_status_of_response() -> None:
    async def fail(_: Received) -> Response:
        return Response("404 in the text", 503)

    http = HttpPool()
    async with serving(fail) as server:
        service = JsonService(
            http, server.url, headers={}, timeout_seconds=9, max_concurrency=1, retry=ONE_TRY
        )
        with pytest.raises(CallFailed) as error:
            await service.post(Request({}), lambda response: response)
    await http.close()

    assert error.value.status == 503
    assert CallFailed(FailureCause.TIMEOUT, "503 s").status == 0


@pytest.mark.parametrize(("status", "is_repeated"), [(502, True), (500, False), (400, False)])
async def test_outage_is_recognized_by_status_not_text(
    monkeypatch: pytest.MonkeyPatch, status: int, *, is_repeated: bool
) -> None:
    async def post(*_: Any) -> None:
        shown = "503" if status != 502 else "status"
        raise CallFailed(FailureCause.HTTP_STATUS, f"{shown} in the text", status=status)

    async def answer(_: Received) -> Response:
        return JSONResponse({}, 503 if len(server.requests) < 3 else 200)

    monkeypatch.setattr(JsonService, "post", post)
    async with serving(answer) as server:
        with pytest.raises(AgentUnavailable if is_repeated else CallFailed):
            await asyncio.wait_for(run_once(server.url, {}), 60)


async def test_run_is_repeated_after_an_outage() -> None:
    states: list[str] = []

    async def answer(_: Received) -> Response:
        states.append("probed")
        return JSONResponse({}, 503 if len(states) < 4 else 200)

    async with serving(answer) as server:
        with pytest.raises(AgentUnavailable):
            await asyncio.wait_for(run_once(server.url, {}), 60)

    assert len(states) == 4
