"""The wire: keys, errors, streams, waiting clients and their retries."""

import asyncio
import gzip
import json
import logging
import math

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError
from yarl import URL

from raggrpo_trainer.gateway import server
from raggrpo_trainer.gateway.calls import Session
from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.model_names import Endpoint
from raggrpo_trainer.gateway.protocol import (
    MAX_ITEMS,
    ChatRequest,
    RequestRejected,
    parse_request,
)
from raggrpo_trainer.gateway.server import MAX_BODY_BYTES
from raggrpo_trainer.gateway.trajectory import Trajectory, TrajectoryCause
from raggrpo_trainer.gateway.working_time import Timer
from support.builders.trainer.gateway_models import USER, byte_tokenizer, in_turn

BODY = {"model": "m", "messages": [USER]}
TOOL = {"type": "function", "function": {"name": "f"}}


def texts(tokenizer=None):
    return in_turn(tokenizer or byte_tokenizer(), "first", "second", "third")


def content(reply):
    return reply["choices"][0]["message"]["content"]


async def started(served, count=1):
    for _ in range(count):
        await served.engine.arrived.acquire()


async def test_unknown_key_is_rejected(serve):
    served = await serve(texts())
    served.open("other")
    status, error = await served.post(BODY)
    assert status == 401
    assert error["error"]["code"] == "invalid_api_key"
    assert error["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "key"},
        {"api-key": "key"},
        {"Authorization": "bearer key"},
        {"traceparent": "00-key-b7ad6b7169203331-01", "Authorization": "Bearer constant"},
    ],
    ids=["x-api-key", "api-key", "bearer", "trace"],
)
async def test_key_is_read_from_header(serve, headers):
    served = await serve(texts())
    served.open("key")
    async with served.http.get(served.url + "/models", headers=headers) as response:
        assert response.status == 200
        assert (await response.json())["data"][0]["id"] == "policy"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("keep_alive_seconds", [10.0, 0.001])
async def test_call_in_flight_at_close_is_not_recorded(serve, is_streamed, keep_alive_seconds):
    served = await serve(texts(), keep_alive_seconds=keep_alive_seconds)
    served.engine.held = asyncio.Event()
    trajectory = served.open()
    call = asyncio.create_task(served.post({**BODY, "stream": is_streamed}))
    await started(served)
    await asyncio.sleep(0.05)
    await served.gateway.close("key")
    if keep_alive_seconds == 10:
        assert (await call)[0] == 410
    else:  # the status has been sent
        with pytest.raises((aiohttp.ClientError, json.JSONDecodeError)):
            await call
    assert trajectory.turns == []
    assert (await served.post(BODY))[0] == 401


@pytest.mark.parametrize("model", ["m", "forwarded"])
@pytest.mark.parametrize("is_key_reused", [False, True])
async def test_body_that_arrives_after_close_is_rejected(serve, monkeypatch, model, is_key_reused):
    is_reading, is_closed = asyncio.Event(), asyncio.Event()
    read_body = web.Request.read

    async def read(request):
        is_reading.set()
        return await read_body(request)

    monkeypatch.setattr(web.Request, "read", read)
    forwarder = Forwarder([Endpoint(("forwarded",), "http://127.0.0.1:9/v1")])
    served = await serve(texts(), forwarder=forwarder)
    trajectory = served.open()

    async def late_body():
        body = json.dumps({**BODY, "model": model}).encode()
        yield body[:-1]
        await is_closed.wait()
        yield body[-1:]

    url, headers = served.url + "/chat/completions", {"Authorization": "Bearer key"}
    call = asyncio.create_task(served.http.post(url, data=late_body(), headers=headers))
    await is_reading.wait()
    await served.gateway.close("key")
    following = served.open() if is_key_reused else trajectory
    is_closed.set()
    async with await call as response:
        assert response.status == 410
        assert "has ended" in (await response.json())["error"]["message"]
    assert served.engine.requests == []
    for each in (trajectory, following):
        assert each.turns == []
        assert each.num_calls == 0
        assert each.failure is None
        assert each.untrained_calls == {}


async def test_closed_session_starts_no_calls():
    session = Session(Trajectory("key", (1,), 1.0, 1.0), Timer(math.inf))
    await session.close()
    started_work = []

    async def work():
        started_work.append(1)

    with pytest.raises(RequestRejected, match="has ended"):
        session.join(b"", lambda: True, False, work)
    with pytest.raises(RequestRejected, match="has ended"):
        await session.run(work())
    assert started_work == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/chat/completions"),
        ("GET", "/"),
    ],
)
async def test_unsupported_endpoint_names_supported_ones(serve, method, path):
    served = await serve(texts())
    trajectory = served.open()
    url = served.url.removesuffix("/v1") + path
    async with served.http.request(
        method, url, json={"model": "m"}, headers={"x-api-key": "key"}
    ) as response:
        assert response.status in (404, 405)
        message = (await response.json())["error"]["message"]
    assert f"{method} {path}" in message
    assert "POST /v1/chat/completions" in message
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED
    assert f"{method} {path}" in trajectory.failure.detail
    assert trajectory.rows() == []


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        (b"{", None, "not JSON"),
        (b"\xff", None, "not JSON"),
        (b"[" * 100_000, None, "not JSON"),
        (b"[]", None, "not a JSON object"),
        ({}, "model", "required"),
        ({"model": "m"}, "messages", "required"),
        ({"model": "m", "messages": []}, "messages", "at least 1"),
        ({"model": "m", "messages": [{"content": "q"}]}, "messages[0].role", "required"),
        ({"model": "m", "messages": [{"role": 1}]}, "messages[0].role", "string"),
        ({"model": "m", "messages": [{"role": "user", "content": 5}]}, "messages[0].content", ""),
        (
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "type image_url is not supported",
        ),
        (
            {"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
            "required",
        ),
        ({**BODY, "n": 2}, "n", "separate trajectories"),
        ({**BODY, "n": "two"}, "n", ""),
        ({**BODY, "max_tokens": 0}, "max_tokens", "greater than"),
        ({**BODY, "stop": [""]}, "stop", "empty"),
        ({**BODY, "stop": 7}, "stop", "list"),
        (
            {**BODY, "messages": [{**USER, "content": ["a", 5]}]},
            "messages[0].content",
            "must be text or an object",
        ),
        (
            {**BODY, "messages": [{**USER, "content": [{"type": "text", "text": None}]}]},
            "messages[0].content",
            "type text must have a text in field text",
        ),
        ({**BODY, "messages": [5]}, "messages[0]", "messages[0]: must be an object"),
        ({**BODY, "stream_options": "all"}, "stream_options", "must be an object"),
        (b'{"model": "m", "seed": %s}' % (b"1" * 5000), None, "a number has too many digits"),
        ({**BODY, "tools": [{"function": {}}]}, "tools[0].function.name", "required"),
        ({**BODY, "tools": [{"type": "custom"}]}, "tools[0].type", "function"),
        (b'{"model": "m", "prompt": "\\ud800"}', None, "lone surrogate"),
        ({**BODY, "tools": [{"function": {"name": "f", "parameters": {"a": "\udfff"}}}]}, None, ""),
        ({**BODY, "continue_final_message": True}, "continue_final_message", "False"),
        (
            {**BODY, "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs.chat_template",
            "cannot be set",
        ),
    ],
)
async def test_malformed_request_names_field(serve, body, param, part):
    served = await serve(texts())
    trajectory = served.open()
    status, error = await served.post(body)
    assert status == 400, error
    assert error["error"]["param"] == param
    assert part in error["error"]["message"]
    assert error["error"]["type"] == "invalid_request_error"
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED
    assert served.engine.requests == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP, identity", "x-odd"])
async def test_compressed_body_is_rejected_before_it_is_read(serve, encoding):
    served = await serve(texts())
    trajectory = served.open()
    headers = {"Authorization": "Bearer key", "Content-Encoding": encoding}

    async def endless():
        yield gzip.compress(json.dumps(BODY).encode())
        await asyncio.Event().wait()

    async with served.http.post(
        served.url + "/chat/completions", data=endless(), headers=headers
    ) as response:
        assert response.status == 415
        error = (await response.json())["error"]
    assert encoding in error["message"]
    assert error["type"] == "invalid_request_error"
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED


async def test_body_is_not_decompressed(serve, monkeypatch):
    monkeypatch.setattr(server, "_require_plain_body", lambda _: None)
    served = await serve(texts())
    served.open()
    body = gzip.compress(json.dumps(BODY).encode())
    status, error = await served.post(body, content_encoding="gzip")
    assert status == 400
    assert "not JSON" in error["error"]["message"]


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer key\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01 no HTTP\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nodd\r\n",
    ],
    ids=["no-http", "negative", "two-lengths", "chunk"],
)
async def test_malformed_http_is_logged_as_debug_line(serve, caplog, request_bytes):
    caplog.set_level(logging.DEBUG)
    served = await serve(texts())
    served.open()
    url = URL(served.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(request_bytes)
    assert b" 400 " in await reader.readline()
    writer.close()
    assert all(record.exc_info is None for record in caplog.records)
    assert any("malformed request" in record.message for record in caplog.records)
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


async def test_body_that_cannot_be_read_is_rejected(serve, caplog, monkeypatch):
    async def read(_):
        raise web.RequestPayloadError("400, message:\n  Not enough data")

    served = await serve(texts())
    trajectory = served.open()
    monkeypatch.setattr(web.Request, "read", read)
    status, error = await served.post(BODY)
    assert status == 400
    message = "the body cannot be read: 400, message: Not enough data"
    assert error["error"]["message"] == message
    assert error["error"]["type"] == "invalid_request_error"
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED
    assert caplog.records == []


async def test_internal_error_is_logged_with_traceback(serve, caplog, monkeypatch):
    served = await serve(texts())
    served.open()
    monkeypatch.setattr(server, "model_list", None)
    headers = {"Authorization": "Bearer key"}
    async with served.http.get(served.url + "/models", headers=headers) as response:
        assert response.status == 500
    assert any(record.exc_info for record in caplog.records)


async def test_plain_body_may_name_its_encoding(serve):
    served = await serve(texts())
    served.open()
    assert (await served.post(BODY, content_encoding="identity"))[0] == 200


async def test_too_large_body_is_rejected(serve):
    served = await serve(texts())
    served.open()
    status, error = await served.post(b" " * (MAX_BODY_BYTES + 1))
    assert status == 413
    assert "16 MiB" in error["error"]["message"]


@pytest.mark.parametrize("part", ['"a",', '{"type":"text"},', "[],"])
async def test_body_of_many_values_is_rejected(serve, part):
    served = await serve(texts())
    trajectory = served.open()
    content = part * (MAX_BODY_BYTES // len(part) - 100)
    status, error = await served.post(
        f'{{"model":"m","messages":[{{"role":"user","content":[{content}"a"]}}]}}'.encode()
    )
    assert status == 413
    assert "too many values" in error["error"]["message"]
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER] * MAX_ITEMS, "tools": [TOOL]},
        {"messages": [1] * (MAX_ITEMS + 1)},
        {"messages": [USER], "tools": [1] * MAX_ITEMS},
        {"messages": [{"role": "user", "content": ["a"] * (MAX_ITEMS // 2)}] * 2},
        {"messages": [{"role": "assistant", "tool_calls": [TOOL] * MAX_ITEMS}]},
    ],
    ids=["messages", "numbers", "tools", "parts", "calls"],
)
async def test_request_of_many_items_is_rejected_before_models_are_built(serve, monkeypatch, body):
    monkeypatch.setattr(ChatRequest, "model_validate", None)
    served = await serve(texts())
    trajectory = served.open()
    status, error = await served.post({"model": "m", **body})
    assert status == 400
    assert "limit 10,000" in error["error"]["message"]
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED


def test_request_at_limit_of_items_is_parsed():
    message = {"role": "user", "content": ["a"] * (MAX_ITEMS - 1)}
    assert len(parse_request(ChatRequest, {"model": "m", "messages": [message]}).messages) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [1] * 1000},
        {"messages": [USER], "tools": [1] * 1000},
        {"messages": [{"role": "assistant", "tool_calls": [1] * 1000}]},
    ],
    ids=["messages", "tools", "calls"],
)
def test_validation_ends_at_first_wrong_entry(body):
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"model": "m", **body})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(("name", "status"), [("gpt-4o", 200), ("gpt-5", 200), ("embed", 404)])
async def test_model_that_is_not_the_policy_is_rejected(serve, name, status):
    served = await serve(texts(), policy_models=("gpt-4*", "gpt-5"))
    served.open()
    result, error = await served.post({**BODY, "model": name})
    assert result == status
    assert status == 200 or error["error"]["code"] == "model_not_found"


async def test_message_that_template_rejects_is_rejected(serve):
    template = "{{ raise_exception('roles must alternate') }}"
    served = await serve(texts(byte_tokenizer(template)), byte_tokenizer(template))
    served.open()
    status, error = await served.post(BODY)
    assert status == 400
    assert error["error"]["param"] == "messages"
    assert "roles must alternate" in error["error"]["message"]


async def test_waiting_client_receives_white_space(serve):
    served = await serve(texts(), keep_alive_seconds=0.005)
    served.engine.held = asyncio.Event()
    served.open()
    headers = {"Authorization": "Bearer key"}
    async with served.http.post(
        served.url + "/chat/completions", json=BODY, headers=headers
    ) as response:
        assert await response.content.readexactly(2) == b"  "
        served.engine.held.set()
        assert content(json.loads(await response.text())) == "first"


async def test_waiting_client_of_stream_receives_comments(serve):
    served = await serve(texts(), keep_alive_seconds=0.005)
    served.engine.held = asyncio.Event()
    served.open()
    headers = {"Authorization": "Bearer key"}
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    async with served.http.post(
        served.url + "/chat/completions", json=body, headers=headers
    ) as response:
        assert (await response.content.readline()).startswith(b":")
        served.engine.held.set()
        lines = (await response.text()).splitlines()
    frames = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert frames.pop() == "[DONE]"
    start, end, usage = map(json.loads, frames)
    assert start["choices"][0]["delta"] == {"role": "assistant", "content": "first"}
    assert end["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0


async def test_error_after_white_space_reaches_retry(serve):
    served = await serve(lambda _: RuntimeError("lost"), keep_alive_seconds=0.005)
    served.engine.held = asyncio.Event()
    served.open()
    call = asyncio.create_task(served.post(BODY))
    await started(served)
    await asyncio.sleep(0.05)
    served.engine.held.set()
    with pytest.raises(aiohttp.ClientError):
        await call
    assert (await served.post(BODY, x_stainless_retry_count="1"))[0] == 410
    assert len(served.engine.requests) == 1


async def test_marked_retry_joins_finished_call(serve):
    served = await serve(texts())
    trajectory = served.open()
    _, first = await served.post(BODY, x_stainless_retry_count="0")
    _, second = await served.post(BODY, x_stainless_retry_count="1")
    assert second == first
    assert len(trajectory.turns) == 1
    assert trajectory.notes == {"joined retries": 1}


async def test_marked_retry_joins_call_in_flight(serve):
    served = await serve(texts())
    served.engine.held = asyncio.Event()
    trajectory = served.open()
    first = asyncio.create_task(served.post(BODY))
    await started(served)
    second = asyncio.create_task(served.post(BODY, x_stainless_retry_count="1"))
    await asyncio.sleep(0.05)
    served.engine.held.set()
    assert await first == await second
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize("finishes_before_retry", [False, True])
async def test_unmarked_retry_joins_call_whose_client_has_gone(serve, finishes_before_retry):
    served = await serve(texts())
    served.engine.held = asyncio.Event()
    trajectory = served.open()
    first = asyncio.create_task(served.post(BODY))
    await started(served)
    first.cancel()
    await asyncio.sleep(0.05)
    if finishes_before_retry:
        served.engine.held.set()
        await asyncio.sleep(0.05)
    second = asyncio.create_task(served.post(BODY))
    await asyncio.sleep(0.05)
    served.engine.held.set()
    assert content((await second)[1]) == "first"
    assert len(trajectory.turns) == 1
    assert content((await served.post(BODY))[1]) == "second"


async def test_equal_requests_of_connected_clients_are_separate_calls(serve):
    served = await serve(texts())
    served.engine.held = asyncio.Event()
    trajectory = served.open()
    calls = [asyncio.create_task(served.post(BODY)) for _ in range(2)]
    await started(served, 2)
    served.engine.held.set()
    assert {content(reply) for _, reply in await asyncio.gather(*calls)} == {"first", "second"}
    assert len(trajectory.turns) == 2
    assert len({request.seed for request in served.engine.requests}) == 2


async def test_equal_body_of_other_trajectory_is_separate_call(serve):
    served = await serve(texts())
    served.open("a")
    served.open("b")
    _, first = await served.post(BODY, key="a")
    _, second = await served.post(BODY, key="b", x_stainless_retry_count="1")
    assert (content(first), content(second)) == ("first", "second")


async def test_logprobs_are_those_of_sampled_tokens(serve):
    served = await serve(texts())
    trajectory = served.open()
    _, chat = await served.post({**BODY, "logprobs": True})
    _, text = await served.post({"model": "m", "prompt": "q", "logprobs": 0}, "/completions")
    listed = [token["logprob"] for token in chat["choices"][0]["logprobs"]["content"]]
    assert listed == list(trajectory.turns[0].logprobs)
    assert text["choices"][0]["logprobs"]["token_logprobs"] == list(trajectory.turns[1].logprobs)
