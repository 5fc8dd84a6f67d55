"""Calls of models that are not trained: their endpoint, key, response, failures and count."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.model_names import Endpoint, ModelNames
from raggrpo_trainer.gateway.protocol import RequestRejected
from raggrpo_trainer.gateway.trajectory import TrajectoryCause
from raggrpo_trainer.gateway.working_time import Timer
from raggrpo_trainer.progress.outages import Outages
from support.builders.trainer.gateway_models import USER, byte_tokenizer, in_turn
from support.servers.faulty_server import Received, always, serving, silent

CHAT = {"model": "judge", "messages": [USER], "temperature": 0.25, "n": 2}
KEY = "sk-of-the-judge"


def says() -> Any:
    return in_turn(byte_tokenizer(), "first", "second")


def forwarder(url: str, *, waits: bool = False) -> Forwarder:
    return Forwarder([Endpoint(("judge", "bge-*"), url, KEY)], Outages() if waits else None)


@pytest.mark.row("F4")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", CHAT),
        ("/completions", {"model": "judge", "prompt": ["a", "b"]}),
        ("/embeddings", {"model": "bge-m3", "input": [["a"]]}),
    ],
)
async def test_call_reaches_endpoint_unchanged_with_its_key(
    serve: Any, path: str, body: dict[str, Any]
) -> None:
    async with serving(always({"id": "theirs"})) as server:
        served = await serve(says(), forwarder=forwarder(server.url + "v1/"))
        trajectory = served.open()
        assert await served.post(body, path) == (200, {"id": "theirs"})

    [received] = server.requests
    assert (received.path, received.body) == (f"/v1{path}", body)
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert "key" not in received.headers.values()
    assert trajectory.untrained_calls == {body["model"]: 1}
    assert (trajectory.turns, trajectory.num_calls, trajectory.failure) == ([], 0, None)
    assert served.engine.requests == []


async def test_stream_is_passed_on_as_it_arrives(serve: Any) -> None:
    is_received = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.wait_for(is_received.wait(), 20)
        yield b"data: [DONE]\n\n"

    async def respond(_: Received) -> Response:
        return StreamingResponse(frames(), media_type="text/event-stream")

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        served.open()
        headers = {"Authorization": "Bearer key"}
        body = {**CHAT, "stream": True}
        url = served.url + "/chat/completions"
        async with served.http.post(url, json=body, headers=headers) as response:
            assert response.content_type == "text/event-stream"
            assert await response.content.readuntil(b"\n\n") == b"data: 1\n\n"
            is_received.set()
            assert await response.content.read() == b"data: [DONE]\n\n"


async def test_policy_is_sampled_next_to_forwarded_models(serve: Any) -> None:
    async with serving(always({})) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        trajectory = served.open()
        await served.post(CHAT)
        _, reply = await served.post({"model": "any", "messages": [USER]})

    assert reply["choices"][0]["message"]["content"] == "first"
    assert (len(trajectory.turns), trajectory.untrained_calls) == (1, {"judge": 1})


@pytest.mark.parametrize(
    ("respond", "status", "part"),
    [
        (always({"error": f"bad {KEY}"}, 401), 401, "status 401: {"),
        (always({"error": "busy"}, 500), 500, "status 500"),
        (always({}, 503), 502, "HttpStatus: 503"),
    ],
)
async def test_error_of_endpoint_is_recorded_without_its_key(
    serve: Any, respond: Any, status: int, part: str
) -> None:
    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        trajectory = served.open()
        assert (await served.post(CHAT))[0] == status

    failure = trajectory.failure
    assert failure
    assert failure.cause is TrajectoryCause.FORWARD_FAILED
    assert part in failure.detail
    assert "model judge at http://127.0.0.1" in failure.detail
    assert KEY not in failure.detail


@pytest.mark.parametrize("split", [1, len(KEY) - 1])
@pytest.mark.parametrize("start", ["bad " * 98, "bad ", "bad " * 1024 + "ba"])
async def test_key_in_parts_of_an_error_is_not_recorded(serve: Any, start: str, split: int) -> None:
    async def parts() -> AsyncIterator[str]:
        yield f'"{start}{KEY[:split]}'
        await asyncio.sleep(0.05)
        yield f'{KEY[split:]}"'

    async def respond(_: Received) -> Response:
        return StreamingResponse(parts(), 401)

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        trajectory = served.open()
        await served.post(CHAT)

    assert trajectory.failure
    assert "bad " in trajectory.failure.detail
    assert KEY[:3] not in trajectory.failure.detail


async def test_redirect_is_an_error_that_names_url(serve: Any) -> None:
    async def respond(_: Received) -> Response:
        return RedirectResponse("http://elsewhere/")

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        served.open()
        status, error = await served.post(CHAT)

    assert status == 502
    assert "status 307 redirects; set url" in error["error"]["message"]


async def test_broken_response_is_recorded(serve: Any) -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise RuntimeError

    async def respond(_: Received) -> Response:
        return StreamingResponse(frames())

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        trajectory = served.open()
        with pytest.raises(aiohttp.ClientError):
            await served.post(CHAT)
        await served.gateway.close("key")

    assert trajectory.failure
    assert "broke off" in trajectory.failure.detail


async def test_call_waits_while_endpoint_is_down(serve: Any) -> None:
    states: list[str] = []

    async def respond(received: Received) -> Response:
        states.append(received.method)
        return JSONResponse({}, 503 if len(states) < 4 else 200)

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url, waits=True))
        trajectory = served.open()
        assert await asyncio.wait_for(served.post(CHAT), 60) == (200, {})

    assert states == ["POST", "GET", "GET", "GET", "POST"]
    assert (trajectory.failure, trajectory.untrained_calls) == (None, {"judge": 1})


@pytest.mark.row("F4")
async def test_endpoint_that_hangs_is_answered_with_504_before_the_run_times_out(
    serve: Any,
) -> None:
    async with serving(silent) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        trajectory = served.open(timer=Timer(1.0))
        started = time.monotonic()
        status, body = await asyncio.wait_for(served.post(CHAT), 20)

    assert status == 504
    assert 0.5 < time.monotonic() - started < 1.0
    error = body["error"]
    assert (error["type"], error["code"]) == ("server_error", "forward_timeout")
    assert "no complete response within 0.9 s; check the endpoint" in error["message"]
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.FORWARD_TIMEOUT


async def test_stream_that_stalls_is_broken_off_and_recorded(serve: Any) -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(60)

    async def respond(_: Received) -> Response:
        return StreamingResponse(frames())

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        trajectory = served.open(timer=Timer(1.0))
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(served.post(CHAT), 20)

    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.FORWARD_TIMEOUT


async def test_time_in_which_clock_of_run_pauses_does_not_count(serve: Any) -> None:
    async def respond(_: Received) -> Response:
        await asyncio.sleep(0.5)
        return JSONResponse({"id": "theirs"})

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        served.open(timer=Timer(0.1, lambda: 0.0))
        assert await asyncio.wait_for(served.post(CHAT), 20) == (200, {"id": "theirs"})


async def test_call_in_flight_ends_with_its_trajectory(serve: Any) -> None:
    is_received = asyncio.Event()

    async def respond(received: Received) -> Response:
        is_received.set()
        return await silent(received)

    async with serving(respond) as server:
        served = await serve(says(), forwarder=forwarder(server.url))
        trajectory = served.open()
        call = asyncio.create_task(served.post(CHAT))
        await is_received.wait()
        await served.gateway.close("key")
        status, _ = await asyncio.wait_for(call, 20)

    assert status == 410
    assert trajectory.failure is None


async def test_models_of_endpoints_are_listed(serve: Any) -> None:
    served = await serve(says(), forwarder=forwarder("http://127.0.0.1:9/"))
    served.open()
    headers = {"Authorization": "Bearer key"}
    async with served.http.get(served.url + "/models", headers=headers) as response:
        names = [each["id"] for each in (await response.json())["data"]]
    assert names == ["policy", "judge"]


async def test_embeddings_by_the_policy_are_rejected_with_remedy(serve: Any) -> None:
    served = await serve(says())
    served.open()
    status, error = await served.post({"model": "m", "input": "q"}, "/embeddings")
    assert status == 404
    assert error["error"]["message"].endswith("with embeddings to rollout.agent.forward")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("policy", ""), ("other", "all"), ("judge", "one"), ("judge-7b", "some"),
        ("judge-7b-tuned", ""), ("j[a]?", "odd"), ("ja", "all"),
    ],
)  # fmt: skip
def test_most_specific_name_applies(name: str, expected: str) -> None:
    endpoints = [Endpoint(("*",), "all"), Endpoint(("judge-*",), "some"),
                 Endpoint(("judge",), "one"), Endpoint(("j[a]?",), "odd")]  # fmt: skip
    endpoint = ModelNames(["policy", "judge-*-tuned"], endpoints).endpoint(name)
    assert (endpoint.url if endpoint else "") == expected


def test_unknown_model_lists_policy_and_forwarded_models() -> None:
    names = ModelNames(["gpt-4*"], [Endpoint(("judge", "bge-*"), "http://m/v1")])
    with pytest.raises(RequestRejected) as raised:
        names.endpoint("gpt-5")
    error = raised.value
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert "'gpt-5' does not exist; the policy is served as gpt-4*, and judge, bge-*" in str(error)
    assert names.listed() == ["policy", "judge"]
