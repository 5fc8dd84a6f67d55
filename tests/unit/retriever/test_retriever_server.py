from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest

from raggrpo_retriever import server
from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index, DenseIndex, Index
from raggrpo_retriever.server import MAX_TOP_K, Shelf, build_app

PASSAGES = [
    Passage("c1", "Paris is the capital of France"),
    Passage("c2", "Lyon is a city of France"),
    Passage("c3", "Tea is a drink"),
]


def a_client(index: Index | None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(build_app(Shelf(index, reason="loading corpus.jsonl")))
    return httpx.AsyncClient(transport=transport, base_url="http://retriever")


@pytest.fixture
async def words() -> AsyncIterator[httpx.AsyncClient]:
    async with a_client(Bm25Index(PASSAGES)) as client:
        yield client


@pytest.fixture
async def dense() -> AsyncIterator[httpx.AsyncClient]:
    async with a_client(DenseIndex(PASSAGES, np.eye(3, 2, dtype=np.float32))) as client:
        yield client


async def test_nothing_is_served_until_the_index_is_there() -> None:
    async with a_client(None) as client:
        health = await client.get("/healthz")
        answer = await client.post("/retrieve", json={"queries": ["x"]})
    assert (health.status_code, health.json()) == (503, {"error": "loading corpus.jsonl"})
    assert answer.status_code == 503


async def test_health_is_ok_once_the_index_is_there(words: httpx.AsyncClient) -> None:
    assert (await words.get("/healthz")).status_code == 200


async def test_search_r1_request_gets_search_r1_answer(words: httpx.AsyncClient) -> None:
    body = {"queries": ["capital of France", "tea"], "topk": 2, "return_scores": True}

    first, second = (await words.post("/retrieve", json=body)).json()["result"]
    assert [found["document"]["id"] for found in first] == ["c1", "c2"]
    assert first[0]["document"] == {"id": "c1", "contents": PASSAGES[0].contents}
    assert first[0]["score"] > first[1]["score"] > 0
    assert [found["document"]["id"] for found in second] == ["c3"]


async def test_single_query_without_scores_gets_bare_documents(words: httpx.AsyncClient) -> None:
    answer = await words.post("/retrieve", json={"query": "tea", "topk": 1, "own": "field"})
    assert answer.json() == {"result": [[{"id": "c3", "contents": "Tea is a drink"}]]}


async def test_dense_index_answers_vectors(dense: httpx.AsyncClient) -> None:
    body = {"vectors": [[0.5, 2]], "topk": 2, "return_scores": True}
    [found] = (await dense.post("/retrieve", json=body)).json()["result"]
    assert [(hit["document"]["id"], hit["score"]) for hit in found] == [("c2", 2.0), ("c1", 0.5)]


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
async def test_a_bad_retrieve_request_is_refused_naming_the_field(
    words: httpx.AsyncClient, body: bytes, field: str
) -> None:
    answer = await words.post("/retrieve", content=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field
    assert answer.json()["error"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("body", "field", "expected"),
    [
        (b'{"queries": ["tea"]}', "vectors", "is missing"),
        (b'{"vectors": [[1, 2], [1]]}', "vectors", "each must have 2 numbers"),
        (b'{"vectors": [[1, 1e39]]}', "vectors", "beyond the range"),
        (b'{"vectors": [[1, NaN]]}', "vectors.0.1", "finite"),
    ],
)
async def test_a_bad_dense_request_is_refused_naming_the_field(
    dense: httpx.AsyncClient, body: bytes, field: str, expected: str
) -> None:
    answer = await dense.post("/retrieve", content=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field
    assert expected in answer.json()["error"]


async def test_a_call_as_large_as_search_r1s_training_makes_is_answered(
    words: httpx.AsyncClient, dense: httpx.AsyncClient
) -> None:
    calls = [
        (words, {"queries": ["tea", "capital"] * 1280, "topk": 1}),
        (dense, {"vectors": [[0, 1], [1, 0]] * 1280, "topk": 1}),
    ]
    for client, body in calls:
        found = (await client.post("/retrieve", json=body)).json()["result"]
        assert len(found) == 2560
        assert {hits[0]["id"] for hits in found[::2]} != {hits[0]["id"] for hits in found[1::2]}


@pytest.mark.parametrize(
    ("limit", "field"), [("MAX_BODY_BYTES", "body"), ("MAX_ANSWER_BYTES", "topk")]
)
async def test_what_takes_too_much_memory_is_refused_with_a_remedy(
    words: httpx.AsyncClient, limit: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, limit, 2000)
    small = {"queries": ["tea"] * 70}
    assert (await words.post("/retrieve", json=small)).is_success

    answer = await words.post("/retrieve", json={"queries": ["tea"] * 400})
    assert answer.status_code == 413
    assert answer.json()["field"] == field
    assert "fewer queries" in answer.json()["error"]


async def test_reference_chat_searches_for_the_context_alone(words: httpx.AsyncClient) -> None:
    body = {"context": "capital France", "score_threshold": 0.0, "top_k": 3, "tenant_id": "acme"}
    results = (await words.post("/chat", json=body)).json()["results"]
    assert [result["id"] for result in results] == ["c1", "c2"]
    assert results[0] == {"id": "c1", "text": PASSAGES[0].contents, "score": 1.0}
    assert 0 < results[1]["score"] < 1


async def test_chat_threshold_is_a_share_of_the_best_score(words: httpx.AsyncClient) -> None:
    body = {"context": "capital France", "score_threshold": 0.95, "top_k": 3}
    results = (await words.post("/chat", json=body)).json()["results"]
    assert [result["id"] for result in results] == ["c1"]


async def test_actor_chat_searches_for_all_of_its_fields(words: httpx.AsyncClient) -> None:
    body = {
        "context": "hello",
        "rewritten_query": "Lyon",
        "user_profile": "drink",
        "history_summary": "capital",
        "score_threshold": 0.0,
        "top_k": 3,
    }
    results = (await words.post("/chat", json=body)).json()["results"]

    assert {result["id"] for result in results} == {"c1", "c2", "c3"}


async def test_chat_without_a_match_answers_no_results(words: httpx.AsyncClient) -> None:
    answer = await words.post("/chat", json={"context": "zebra"})
    assert (answer.status_code, answer.json()) == (200, {"results": []})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"rewritten_query": "tea", "score_threshold": 0.5, "top_k": 3}, "context"),
        ({"context": "tea", "score_threshold": 1.5}, "score_threshold"),
        ({"context": "tea", "user_profile": {"age": 3}}, "user_profile"),
    ],
)
async def test_a_bad_chat_request_is_refused_naming_the_field(
    words: httpx.AsyncClient, body: dict[str, object], field: str
) -> None:
    answer = await words.post("/chat", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_chat_on_a_dense_index_is_refused(dense: httpx.AsyncClient) -> None:
    answer = await dense.post("/chat", json={"context": "tea"})
    assert answer.status_code == 422
    assert "finds vectors only" in answer.json()["error"]
