import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from raggrpo_retriever import server
from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index, Hit, Index
from raggrpo_retriever.server import MAX_TOP_K, IndexHolder, RetrieveRequest, build_app

PASSAGES = [
    Passage("c1", "Paris is the capital of France"),
    Passage("c2", "Lyon is a city of France"),
    Passage("c3", "Tea is a drink"),
]


def make_client(index: Index | None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(build_app(IndexHolder(index, reason="loading corpus.jsonl")))
    return httpx.AsyncClient(transport=transport, base_url="http://retriever")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(Bm25Index(PASSAGES)) as client:
        yield client


async def test_requests_return_503_until_index_is_loaded() -> None:
    async with make_client(None) as client:
        health = await client.get("/healthz")
        answer = await client.post("/retrieve", json={"queries": ["x"]})
    assert (health.status_code, health.json()) == (503, {"error": "loading corpus.jsonl"})
    assert answer.status_code == 503


async def test_health_is_ok_when_index_is_loaded(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).status_code == 200


async def test_search_r1_request_returns_search_r1_response(client: httpx.AsyncClient) -> None:
    body = {"queries": ["capital of France", "tea"], "topk": 2, "return_scores": True}

    first, second = (await client.post("/retrieve", json=body)).json()["result"]
    assert [hit["document"]["id"] for hit in first] == ["c1", "c2"]
    assert first[0]["document"] == {"id": "c1", "contents": PASSAGES[0].contents}
    assert first[0]["score"] > first[1]["score"] > 0
    assert [hit["document"]["id"] for hit in second] == ["c3"]


async def test_single_query_without_scores_returns_bare_documents(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/retrieve", json={"query": "tea", "topk": 1, "own": "field"})
    assert answer.json() == {"result": [[{"id": "c3", "contents": "Tea is a drink"}]]}


@pytest.mark.parametrize("path", ["/retrieve", "/chat"])
async def test_client_that_disconnects_while_it_sends_its_body_raises_nothing(path: str) -> None:
    received = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    await build_app(IndexHolder(Bm25Index(PASSAGES)))(scope, receive, send)
    assert sent[0]["status"] in (400, 422)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b"{}", "queries"),
        (b'{"queries": "tea"}', "queries"),
        (b'{"queries": ["tea", 3]}', "queries.1"),
        (b'{"query": "tea", "topk": 0}', "topk"),
        (b'{"query": "tea", "topk": "3"}', "topk"),
        (b'{"query": "tea", "topk": %d}' % (MAX_TOP_K + 1), "topk"),
        (b'{"query": "tea", "return_scores": 1}', "return_scores"),
    ],
)
async def test_error_names_field_of_invalid_retrieve_request(
    client: httpx.AsyncClient, body: bytes, field: str
) -> None:
    answer = await client.post("/retrieve", content=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field
    assert answer.json()["error"].startswith(f"{field}: ")


@pytest.mark.row("D9")
async def test_large_search_r1_request_succeeds(
    client: httpx.AsyncClient,
) -> None:
    body = {"queries": ["tea", "capital"] * 1280, "topk": 1}
    results = (await client.post("/retrieve", json=body)).json()["result"]
    assert len(results) == 2560
    assert {hits[0]["id"] for hits in results[::2]} != {hits[0]["id"] for hits in results[1::2]}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            {"queries": ["tea"] * 10_001},
            "queries: the call has 10,001 queries, limit 10,000; send fewer queries per call",
        ),
        (
            {"queries": ["tea", "a" * 262_145]},
            "queries.1: the query has 262,145 characters, limit 262,144; send a shorter query",
        ),
        (
            {"query": "a" * 262_145},
            "query: the query has 262,145 characters, limit 262,144; send a shorter query",
        ),
        (
            {"queries": ["a" * 262_144] * 17},
            "queries: the queries have 4,456,448 characters, limit 4,194,304; "
            "send fewer queries per call",
        ),
        (
            {"queries": [1] * 1_100_000},
            "body: the request has too many values, which may use 67108864 bytes of memory; "
            "send fewer queries",
        ),
    ],
)
async def test_queries_beyond_limit_are_rejected_with_remedy(
    client: httpx.AsyncClient, body: dict[str, object], error: str
) -> None:
    answer = await client.post("/retrieve", json=body)
    assert (answer.status_code, answer.json()["error"]) == (413, error)


async def test_queries_at_limits_are_searched(client: httpx.AsyncClient) -> None:
    many = await client.post("/retrieve", json={"queries": ["tea"] * 10_000, "topk": 1})
    long = await client.post("/retrieve", json={"queries": ["a" * 262_144] * 16})
    assert (len(many.json()["result"]), len(long.json()["result"])) == (10_000, 16)


async def test_context_beyond_limit_is_rejected(client: httpx.AsyncClient) -> None:
    parts = {"context": "a" * 131_072, "user_profile": "b" * 131_072}
    answer = await client.post("/chat", json=parts)
    assert (answer.status_code, answer.json()["field"]) == (413, "context")
    assert "262,145 characters, limit 262,144" in answer.json()["error"]


def test_request_with_many_invalid_queries_has_one_error() -> None:
    with pytest.raises(ValidationError) as raised:
        RetrieveRequest.model_validate_json(json.dumps({"queries": [1] * 1000}))
    assert raised.value.error_count() == 1


@pytest.mark.row("D9")
@pytest.mark.parametrize(
    ("limit", "field"), [("MAX_BODY_BYTES", "body"), ("MAX_RESPONSE_BYTES", "topk")]
)
async def test_request_above_memory_limit_is_rejected_with_remedy(
    client: httpx.AsyncClient, limit: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, limit, 2000)
    small = {"queries": ["tea"] * 70}
    assert (await client.post("/retrieve", json=small)).is_success

    answer = await client.post("/retrieve", json={"queries": ["tea"] * 400})
    assert answer.status_code == 413
    assert answer.json()["field"] == field
    assert "fewer queries" in answer.json()["error"]


async def test_chat_request_without_actor_fields_searches_context_only(
    client: httpx.AsyncClient,
) -> None:
    body = {"context": "capital France", "score_threshold": 0.0, "top_k": 3, "tenant_id": "acme"}
    results = (await client.post("/chat", json=body)).json()["results"]
    assert [result["id"] for result in results] == ["c1", "c2"]
    assert results[0] == {"id": "c1", "text": PASSAGES[0].contents, "score": 1.0}
    assert 0 < results[1]["score"] < 1


async def test_chat_threshold_is_relative_to_best_score(client: httpx.AsyncClient) -> None:
    body = {"context": "capital France", "score_threshold": 0.95, "top_k": 3}
    results = (await client.post("/chat", json=body)).json()["results"]
    assert [result["id"] for result in results] == ["c1"]


async def test_chat_request_with_actor_fields_searches_all_fields(
    client: httpx.AsyncClient,
) -> None:
    body = {
        "context": "hello",
        "rewritten_query": "Lyon",
        "user_profile": "drink",
        "history_summary": "capital",
        "score_threshold": 0.0,
        "top_k": 3,
    }
    results = (await client.post("/chat", json=body)).json()["results"]

    assert {result["id"] for result in results} == {"c1", "c2", "c3"}


async def test_chat_without_match_returns_empty_results(client: httpx.AsyncClient) -> None:
    answer = await client.post("/chat", json={"context": "zebra"})
    assert (answer.status_code, answer.json()) == (200, {"results": []})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"rewritten_query": "tea", "score_threshold": 0.5, "top_k": 3}, "context"),
        ({"context": "tea", "score_threshold": 1.5}, "score_threshold"),
        ({"context": "tea", "user_profile": {"age": 3}}, "user_profile"),
    ],
)
async def test_invalid_chat_request_is_rejected_naming_field(
    client: httpx.AsyncClient, body: dict[str, object], field: str
) -> None:
    answer = await client.post("/chat", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


class FixedScoreIndex:
    """Index that returns `PASSAGES` with fixed scores, which may be negative."""

    def __init__(self, *scores: float) -> None:
        self._scores = scores

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        scored = zip(PASSAGES, self._scores, strict=False)
        hits = [Hit(position, passage, score) for position, (passage, score) in enumerate(scored)]
        return [hits[:top_k] for _ in queries]


@pytest.mark.parametrize(
    ("scores", "shares"),
    [((0.8, 0.4, -0.2), [1.0, 0.5, 0.0]), ((-0.1, -0.2), [1.0, 0.0]), ((0.0,), [1.0])],
)
async def test_chat_scores_are_relative_to_best_score_for_any_index(
    scores: tuple[float, ...], shares: list[float]
) -> None:
    async with make_client(FixedScoreIndex(*scores)) as client:
        answer = await client.post("/chat", json={"context": "tea", "score_threshold": 0.0})
    assert [result["score"] for result in answer.json()["results"]] == shares
