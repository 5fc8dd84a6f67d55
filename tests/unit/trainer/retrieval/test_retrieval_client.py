import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    RetrievalEndpoint,
    RetrievalMode,
    RetrievalSpec,
)
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.json_service import RetryPolicy
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.retrieval.client import BATCH_QUERIES, RetrievalClient
from raggrpo_trainer.retrieval.passage import Passage
from raggrpo_trainer.sample_failures import RetrievalFailed
from support.servers.faulty_server import (
    FaultyServer,
    Received,
    Respond,
    always,
    rag_chat,
    search_r1,
    serving,
    silent,
)

NO_DELAY = RetryPolicy(retries=2, first_delay_seconds=0.0)
FIELDS = {"user_profile": "young", "rewritten_query": "loan rate", "history_summary": "asked"}


def make_endpoint(url: str, **values: Any) -> RetrievalEndpoint:
    return RetrievalEndpoint.model_validate({"name": "kb", "url": url, **values})


def make_rag_chat(url: str, **values: Any) -> RetrievalEndpoint:
    actor = {"role": EndpointRole.ACTOR, "protocol": EndpointProtocol.RAG_CHAT, "name": "actor-8b"}
    return make_endpoint(url, **{**actor, **values})


Make = Callable[..., RetrievalEndpoint]


def make_client(
    *endpoints: RetrievalEndpoint, retry: RetryPolicy = NO_DELAY, **options: Any
) -> RetrievalClient:
    spec = RetrievalSpec(mode=RetrievalMode.REWARD, endpoints=list(endpoints))
    return RetrievalClient(spec, options.pop("headers", {}), retry=retry, **options)


@asynccontextmanager
async def make_served_client(
    respond: Respond,
    make: Make = make_rag_chat,
    *,
    client: dict[str, Any] | None = None,
    **values: Any,
) -> AsyncIterator[tuple[FaultyServer, RetrievalClient]]:
    """Yield a server, and a client whose only endpoint is that server with these `values`."""
    async with serving(respond) as server:
        options = client or {}
        async with make_client(make(server.url, **values), **options) as retrieval_client:
            yield server, retrieval_client


async def chat(received: Received) -> Response:
    return rag_chat(received)


async def test_actor_request_contains_fields_extra_body_and_headers() -> None:
    headers = {"actor-8b": {"Authorization": "Bearer secret-token\n"}}
    values: dict[str, Any] = {
        "scoreThreshold": 0.9,
        "topK": 5,
        "extraBody": {"tenant_id": "acme", "top_k": "9"},
    }
    async with make_served_client(chat, client={"headers": headers}, **values) as (server, client):
        passages = await client.retrieve("actor-8b", "hello", FIELDS, sample="1")

    [received] = server.requests
    assert received.body == {
        "context": "hello",
        **FIELDS,
        "score_threshold": 0.9,
        "top_k": 5,
        "tenant_id": "acme",
    }
    assert received.headers["authorization"] == "Bearer secret-token"
    assert received.headers["content-type"] == "application/json"
    assert passages == (Passage("hello", "about hello", 0.5),)


async def test_reference_request_contains_only_context() -> None:
    async with make_served_client(chat, name="reference-32b", role="Reference") as (server, client):
        await client.retrieve("reference-32b", "hello", sample="1")
    assert server.requests[0].body == {"context": "hello", "score_threshold": 0.95, "top_k": 3}


async def test_search_r1_protocol_accepts_scored_and_unscored_responses() -> None:
    async with serving(search_r1(scores=True)) as scored, serving(search_r1(scores=False)) as bare:
        endpoints = make_endpoint(scored.url, topK=2), make_endpoint(bare.url, name="bare")
        async with make_client(*endpoints) as client:
            with_score = await client.retrieve("kb", "tea", sample="1")
            without = await client.retrieve("bare", "tea", FIELDS, sample="1")

    assert scored.requests[0].body == {"queries": ["tea"], "topk": 2, "return_scores": True}
    assert bare.requests[0].body["queries"] == ["young\nloan rate\nasked\ntea"]
    assert with_score == (Passage("tea", "about tea", 0.5),)
    assert [passage.score for passage in without] == [1.0]


async def test_query_with_lone_surrogate_succeeds() -> None:
    async with serving(chat) as server, make_client(make_rag_chat(server.url)) as client:
        await client.retrieve("actor-8b", "x", {"rewritten_query": "half \ud83d"}, sample="1")
    assert server.requests[0].body["rewritten_query"] == "half \ud83d"


async def not_json(_: Received) -> Response:
    return PlainTextResponse("<html>boom</html>")


ANSWER_WITHOUT_SCORE = {"results": [{"id": "1", "text": "x"}]}


@pytest.mark.parametrize(
    ("respond", "cause", "detail", "tries"),
    [
        (silent, FailureCause.TIMEOUT, "no response within 0.2 s", 3),
        (always("boom", 500), FailureCause.HTTP_STATUS, "500 '\"boom\"'", 3),
        (always("slow down", 429), FailureCause.HTTP_STATUS, "429 '\"slow down\"'", 3),
        (always("no", 404), FailureCause.HTTP_STATUS, "404 '\"no\"'", 1),
        (always("moved", 302), FailureCause.HTTP_STATUS, "302 '\"moved\"'", 1),
        (not_json, FailureCause.BAD_JSON, "'<html>boom</html>'", 1),
        (
            always({}),
            FailureCause.MISSING_FIELD,
            "no list of results at any default path; received {}",
            1,
        ),
        (
            always(ANSWER_WITHOUT_SCORE),
            FailureCause.MISSING_FIELD,
            "results: a result has no finite score at any default path; received "
            "{results: [1 × {id: text, text: text}]}",
            1,
        ),
    ],
)
async def test_invalid_response_fails_with_cause_and_retries_if_transient(
    respond: Respond, cause: FailureCause, detail: str, tries: int
) -> None:
    async with make_served_client(respond, timeoutSeconds=0.2) as (server, client):
        with pytest.raises(RetrievalFailed) as failed:
            await client.retrieve("actor-8b", "hello", FIELDS, sample="1")
        summary = client.summaries()["actor-8b"]

    assert (failed.value.endpoint, failed.value.cause, failed.value.detail) == (
        "actor-8b",
        cause,
        detail,
    )
    assert len(server.requests) == tries
    assert summary.failures == {cause: 1}


@pytest.mark.parametrize(
    "results",
    [[], [[{"document": {"id": "1"}, "score": 1}]], [[{"document": {"contents": None}}]], [[], []]],
)
async def test_invalid_search_r1_response_is_reported_as_missing_field(results: list[Any]) -> None:
    async with make_served_client(always({"result": results}), make_endpoint) as (_, client):
        with pytest.raises(RetrievalFailed, match="MissingField: result"):
            await client.retrieve("kb", "tea", sample="1")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.row("A15")
@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://127.0.0.1:{port}/", FailureCause.CONNECTION_REFUSED),
        ("http://nowhere.invalid/", FailureCause.DNS_FAILURE),
    ],
)
async def test_unreachable_retrieval_service_fails_with_cause(
    url: str, cause: FailureCause
) -> None:
    url = url.format(port=closed_port())
    async with make_client(make_rag_chat(url)) as client:
        with pytest.raises(RetrievalFailed) as failed:
            await client.retrieve("actor-8b", "hello", sample="1")

    assert failed.value.cause == cause
    assert failed.value.detail


@pytest.mark.row("A15")
@pytest.mark.parametrize(
    ("scheme", "cause", "tries"),
    [("http", FailureCause.CONNECTION_LOST, 3), ("https", FailureCause.TLS_FAILURE, 1)],
)
async def test_broken_connections_are_reported_with_cause(
    scheme: str, cause: FailureCause, tries: int
) -> None:
    connections = 0

    async def neither_http_nor_tls(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal connections
        connections += 1
        await reader.read(1)
        if scheme == "https":
            writer.write(b"no TLS here")
        writer.close()

    server = await asyncio.start_server(neither_http_nor_tls, "127.0.0.1", 0)
    async with server:
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with make_client(make_rag_chat(url)) as client:
            with pytest.raises(RetrievalFailed) as failed:
                await client.retrieve("actor-8b", "hello", sample="1")

    assert failed.value.cause == cause
    assert connections == tries


async def test_call_succeeds_when_service_recovers_within_retries() -> None:
    async def busy_twice(received: Received) -> Response:
        return rag_chat(received) if received.number == 2 else JSONResponse("busy", 503)

    async with serving(busy_twice) as server, make_client(make_rag_chat(server.url)) as client:
        passages = await client.retrieve("actor-8b", "hello", sample="1")
        summary = client.summaries()["actor-8b"]

    assert [passage.id for passage in passages] == ["hello"]
    assert summary.failures == {}
    assert (summary.answered, summary.retries) == (1, 2)
    assert 0 < summary.p50 <= summary.p95 <= summary.p99


async def test_concurrent_queries_are_batched() -> None:
    queries = [f"query {number}" for number in range(BATCH_QUERIES + 6)]
    async with serving(search_r1()) as server, make_client(make_endpoint(server.url)) as client:
        answers = await asyncio.gather(*(client.retrieve("kb", q, sample=q) for q in queries))

    sizes = sorted(len(request.body["queries"]) for request in server.requests)
    assert sizes == [6, BATCH_QUERIES]
    assert [passages[0].id for passages in answers] == queries


async def test_sequential_queries_are_not_batched() -> None:
    async with make_served_client(search_r1(), make_endpoint) as (server, client):
        answers = [await client.retrieve("kb", query, sample=query) for query in "abc"]
    assert [request.body["queries"] for request in server.requests] == [["a"], ["b"], ["c"]]
    assert [passages[0].id for passages in answers] == ["a", "b", "c"]


async def test_failing_query_does_not_fail_its_batch() -> None:
    healthy = search_r1()

    async def fail_on_poison(received: Received) -> Response:
        bad = "poison" in received.body["queries"]
        return JSONResponse("boom", 500) if bad else await healthy(received)

    async with serving(fail_on_poison) as server, make_client(make_endpoint(server.url)) as client:
        tea, poison, milk = await asyncio.gather(
            *(client.retrieve("kb", q, sample=q) for q in ("tea", "poison", "milk")),
            return_exceptions=True,
        )

    assert isinstance(tea, tuple)
    assert isinstance(milk, tuple)
    assert isinstance(poison, RetrievalFailed)
    assert server.requests[0].body["queries"] == ["tea", "poison", "milk"]


@pytest.mark.parametrize("make", [make_endpoint, make_rag_chat])
async def test_equal_queries_share_one_cached_call(make: Make) -> None:
    async def either(received: Received) -> Response:
        return await search_r1()(received) if "queries" in received.body else rag_chat(received)

    async with make_served_client(either, make, name="kb") as (server, client):
        together = await asyncio.gather(
            *(client.retrieve("kb", "tea", sample=str(i)) for i in range(5))
        )
        later = await client.retrieve("kb", "tea", sample="later")

    assert len(server.requests) == 1
    assert {*together, later} == {(Passage("tea", "about tea", 0.5),)}


async def test_equal_queries_are_sent_again_without_cache() -> None:
    async with (
        serving(chat) as server,
        make_client(make_rag_chat(server.url, cache=False)) as client,
    ):
        for number in range(2):
            await client.retrieve("actor-8b", "tea", sample=str(number))
    assert len(server.requests) == 2


async def test_retrieval_cache_evicts_least_recently_used_query() -> None:
    async with make_served_client(chat, client={"cached_queries": 2}) as (server, client):
        for context in ("a", "b", "a", "c", "a", "b"):
            await client.retrieve("actor-8b", context, sample=context)
    assert [request.body["context"] for request in server.requests] == ["a", "b", "c", "b"]


async def test_failed_call_is_not_cached() -> None:
    async def fail_first(received: Received) -> Response:
        return rag_chat(received) if received.number else JSONResponse("bad", 400)

    async with serving(fail_first) as server, make_client(make_rag_chat(server.url)) as client:
        with pytest.raises(RetrievalFailed):
            await client.retrieve("actor-8b", "tea", sample="1")
        passages = await client.retrieve("actor-8b", "tea", sample="2")

    assert len(passages) == 1


@pytest.mark.parametrize(
    ("make", "cache", "queries"),
    [(make_endpoint, True, "tt"), (make_rag_chat, True, "tt"), (make_endpoint, False, "it")],
)
async def test_canceled_caller_does_not_cancel_shared_call(
    make: Make, cache: bool, queries: str
) -> None:
    called = asyncio.Event()
    answer = asyncio.Event()

    async def respond_later(received: Received) -> Response:
        called.set()
        await answer.wait()
        return await search_r1()(received) if "queries" in received.body else rag_chat(received)

    async with make_served_client(respond_later, make, name="kb", cache=cache) as (server, client):
        impatient, patient = (
            asyncio.create_task(client.retrieve("kb", query, sample=query)) for query in queries
        )
        await called.wait()
        impatient.cancel()
        await asyncio.wait([impatient])
        answer.set()
        passages = await patient

    assert [passage.id for passage in passages] == ["t"]
    assert len(server.requests) == 1


async def test_calls_in_flight_are_limited_by_endpoint() -> None:
    full, go = asyncio.Event(), asyncio.Event()

    async def respond_when_full(received: Received) -> Response:
        if received.number == 2:
            full.set()
        await go.wait()
        return rag_chat(received)

    async with make_served_client(respond_when_full, maxConcurrency=3) as (server, client):
        calls = asyncio.gather(
            *(client.retrieve("actor-8b", str(n), sample=str(n)) for n in range(9))
        )
        await full.wait()
        go.set()
        await calls

    assert server.most_in_flight == 3
    assert len(server.requests) == 9


async def outcome(client: RetrievalClient, context: str) -> object:
    [result] = await asyncio.gather(
        client.retrieve("actor-8b", context, sample=context), return_exceptions=True
    )
    return result


@pytest.mark.row("A4")
async def test_warm_up_allows_slow_first_response() -> None:
    async def slow_first(received: Received) -> Response:
        await asyncio.sleep(0.0 if received.number else 0.3)
        return rag_chat(received)

    async with make_served_client(slow_first, timeoutSeconds=0.2) as (server, client):
        warm_up = await client.warm_up("actor-8b", limit_seconds=20)

    assert warm_up.first_seconds >= 0.3
    assert warm_up.next_seconds > 0
    assert [set(request.body) for request in server.requests] == [
        {"context", "score_threshold", "top_k", *FIELDS}
    ] * 2


async def test_warm_up_waits_for_loading_service() -> None:
    async def loading_first(received: Received) -> Response:
        return rag_chat(received) if received.number else JSONResponse("loading", 503)

    async with serving(loading_first) as server, make_client(make_rag_chat(server.url)) as client:
        await client.warm_up("actor-8b", limit_seconds=20)

    assert len(server.requests) == 3


@pytest.mark.row("A4")
async def test_warm_up_failure_message_has_endpoint_url_status_and_body() -> None:
    async with (
        serving(always({"error": "bad token"}, 401)) as server,
        make_client(make_rag_chat(f"{server.url}?key=hidden")) as client,
    ):
        with pytest.raises(TrainerError) as raised:
            await client.warm_up("actor-8b", limit_seconds=20)

    assert raised.value.exit_code is ExitCode.RETRIEVAL_UNAVAILABLE
    assert str(raised.value).startswith(f"endpoint actor-8b ({server.url}) sent no usable response")
    assert 'HttpStatus: 401 \'{"error":"bad token"}\'; check' in str(raised.value)
    assert "hidden" not in str(raised.value)
    assert len(server.requests) == 1


async def test_warm_up_fails_at_time_limit() -> None:
    url = f"http://127.0.0.1:{closed_port()}/"
    async with make_client(make_rag_chat(url)) as client:
        with pytest.raises(TrainerError, match="ConnectionRefused"):
            await client.warm_up("actor-8b", limit_seconds=0.1)


async def test_warm_up_continues_beyond_time_limit_during_outage() -> None:
    async def loading_first(received: Received) -> Response:
        return rag_chat(received) if received.number else JSONResponse("loading", 503)

    reported: list[list[str]] = []
    outages = Outages(lambda down: reported.append([each.name for each in down]))
    async with make_served_client(loading_first, client={"outages": outages}) as (server, client):
        with outages.reporting():
            await client.warm_up("actor-8b", limit_seconds=0.5)

    assert len(server.requests) == 3
    assert [names for names in reported if names] == [["endpoint actor-8b"]]
    assert reported[-1] == []


@pytest.mark.row("A11")
async def test_calls_are_logged_with_sample_and_status_without_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def repeats_headers(received: Received) -> Response:
        if received.number:
            return PlainTextResponse(f"bad {received.headers['authorization']}", 400)
        return rag_chat(received)

    caplog.set_level(logging.DEBUG)
    headers = {"actor-8b": {"Authorization": "Bearer secret-token"}}
    options = {"headers": headers, "log_calls": True}
    async with make_served_client(repeats_headers, client=options) as (_, client):
        await client.retrieve("actor-8b", "hello", sample="17/0")
        await client.retrieve("actor-8b", "hello", sample="17/1")
        failure = await outcome(client, "17/2")

    lines = [r.getMessage() for r in caplog.records if r.name == "raggrpo_trainer.retrieval.client"]
    assert [line.partition(" took ")[0] for line in lines] == [
        f"retrieval from endpoint actor-8b for sample 17/{n}" for n in range(3)
    ]
    assert [line.partition(" s: ")[2] for line in lines] == [
        "called, 1 passages",
        "cached, 1 passages",
        "HttpStatus: 400 'bad Bearer ***'",
    ]
    assert "secret-token" not in caplog.text + str(failure)


async def test_calls_are_not_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(chat) as server, make_client(make_rag_chat(server.url)) as client:
        await client.retrieve("actor-8b", "hello", sample="17")
    assert caplog.records == []


async def test_invalid_header_secret_is_not_in_error_message() -> None:
    headers = {"actor-8b": {"Authorization": "Bearer secret\ntoken-of-mine"}}
    async with make_served_client(chat, client={"headers": headers}) as (_, client):
        failure = await outcome(client, "hello")
    assert isinstance(failure, RetrievalFailed)
    assert "token-of-mine" not in str(failure)


async def test_retrieval_client_close_cancels_calls_in_flight() -> None:
    called = asyncio.Event()

    async def never_respond(received: Received) -> Response:
        called.set()
        return await silent(received)

    async with serving(never_respond) as server, make_client(make_endpoint(server.url)) as client:
        call = asyncio.create_task(client.retrieve("kb", "tea", sample="1"))
        await called.wait()

    await asyncio.wait([call], timeout=10)
    assert call.cancelled()


async def test_length_of_passages_is_limited() -> None:
    def make(*lengths: int) -> Respond:
        texts = [str(i) * length for i, length in enumerate(lengths)]
        return always({"result": [[{"contents": text} for text in texts]]})

    half = 2**19
    async with (
        serving(make(half, half, 1)) as accepted,
        serving(make(half, half + 1)) as rejected,
        make_client(
            make_endpoint(accepted.url, name="accepted", topK=2),
            make_endpoint(rejected.url, name="rejected", topK=2),
        ) as client,
    ):
        passages = await client.retrieve("accepted", "tea", sample="1")
        assert [len(each.text) for each in passages] == [half, half]
        message = "1,048,577 characters, limit 1,048,576; return shorter passages or decrease topK"
        with pytest.raises(RetrievalFailed, match=message) as caught:
            await client.retrieve("rejected", "tea", sample="1")
    assert caught.value.cause is FailureCause.BAD_JSON
    assert not caught.value.transient
