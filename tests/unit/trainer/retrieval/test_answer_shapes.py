"""Other people's RAG services: requests as they want them, answers as they give them."""

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from raggrpo_api.spec.retrieval import RetrievalEndpoint, RetrievalSpec
from raggrpo_trainer.http.json_service import ONE_TRY, RetryPolicy
from raggrpo_trainer.http.outages import Outages
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.retrieval.passage import Passage
from raggrpo_trainer.sample_failures import FailureCause, RetrievalFailed
from support.servers.faulty_server import FaultyServer, Received, Respond, always, serving

_HITS = [
    {"ref": 7, "body": "Savings pay 2 %.", "rel": 0.9},
    {"ref": 8, "body": "Loans cost 5 %.", "rel": 0.4},
]
BANK = {"code": 0, "payload": {"hits": _HITS}}
"""Results two levels down, under names of their own, with numeric ids."""
LIBRARY = [{"node": {"id": "a", "text": "Tea is a drink."}, "score": "1.5"}]
"""A bare list of nodes, with scores as text."""
SHOP = {"groups": [{"docs": [{"sku": "s1", "meta": {"copy": "Red shoes"}}]},
                   {"docs": [{"sku": "s2", "meta": {"copy": "Blue shoes"}}]}]}  # fmt: skip
"""Results in groups, without scores."""


async def asked(
    respond: Respond, query: str = "tea", **values: Any
) -> tuple[FaultyServer, tuple[Passage, ...]]:
    columns = values.pop("columns", {})
    async with serving(respond) as server:
        given = {"name": "kb", "role": "Reference", "protocol": "RagChat"}
        url = server.url + values.pop("url_end", "")
        endpoint = RetrievalEndpoint.model_validate({**given, "url": url, **values})
        spec = RetrievalSpec(endpoints=[endpoint])
        async with RetrievalClient(spec, {}, retry=RetryPolicy(retries=0)) as client:
            found = await client.retrieve("kb", query, sample="1", columns=columns)
    return server, found


@pytest.mark.parametrize(
    ("answer", "response", "expected"),
    [
        (
            BANK,
            {"items": "payload.hits", "id": "ref", "text": "body", "score": "rel"},
            (Passage("7", "Savings pay 2 %.", 0.9), Passage("8", "Loans cost 5 %.", 0.4)),
        ),
        (
            LIBRARY,
            {"items": "$", "id": "node.id", "text": "node.text"},
            (Passage("a", "Tea is a drink.", 1.5),),
        ),
        (
            SHOP,
            {"items": "groups[*].docs", "id": "sku", "text": "meta.copy"},
            (Passage("s1", "Red shoes", 1.0), Passage("s2", "Blue shoes", 1.0)),
        ),
    ],
)
async def test_answers_of_any_shape_are_read_by_their_mapping(
    answer: Any, response: dict[str, str], expected: tuple[Passage, ...]
) -> None:
    _, found = await asked(always(answer), response=response, role="Retriever", protocol="Http",
                           body={"q": "{question}"})  # fmt: skip
    assert found == expected


@pytest.mark.parametrize(
    "answer",
    [
        {"results": [{"id": "1", "text": "Tea", "score": 0.5}]},
        {"data": [{"id": "1", "content": "Tea", "score": 0.5}]},
        {"hits": {"hits": [{"_id": "1", "_score": 0.5, "_source": {"text": "Tea"}}]}},
        [{"id": "1", "text": "Tea", "score": 0.5}],
    ],
)
async def test_usual_shapes_need_no_mapping(answer: Any) -> None:
    _, found = await asked(always(answer))
    assert found == (Passage("1", "Tea", 0.5),)


async def test_an_answer_that_does_not_fit_is_shown_without_its_values_and_gets_a_mapping() -> None:
    with pytest.raises(RetrievalFailed) as caught:
        await asked(always(BANK))
    assert caught.value.cause is FailureCause.MISSING_FIELD
    assert "response: {items: payload.hits, id: ref, text: body, score: rel}" in str(caught.value)
    assert (
        "received {code: number, payload: {hits: [2 × {ref: number, body: text, rel: number}]}}"
        in str(caught.value)
    )
    assert "Savings" not in str(caught.value)


async def test_the_body_takes_any_json_value_and_the_samples_fields() -> None:
    body = {
        "tenant": "acme-{region}",
        "limits": {"top": "{top_k}", "exact": True, "boost": [1, 2.5, None]},
        "filter": "{price}",
        "literal": "{{question}} { text }",
    }
    server, _ = await asked(
        always({"results": []}), extraBody=body, columns={"region": "EU", "price": {"max": 3}}
    )
    sent = server.requests[0].body
    assert sent["tenant"] == "acme-EU"
    assert sent["limits"] == {"top": 3, "exact": True, "boost": [1, 2.5, None]}
    assert sent["filter"] == {"max": 3}
    assert sent["literal"] == "{question} { text }"


async def test_every_call_has_a_message_id_of_its_own() -> None:
    ids = set()
    for query in ("tea", "coffee"):
        server, _ = await asked(always([]), query, extraBody={"message_id": "{message_id}"})
        ids |= {each.body["message_id"] for each in server.requests}
    assert len(ids) == 2
    assert all(len(each) == 32 for each in ids)


async def test_a_streamed_answer_is_read_to_its_end() -> None:
    events = [{"delta": "Te"}, {"delta": "a"}, {"results": [{"id": "1", "text": "T", "score": 1}]}]
    text = ": hello\n\n" + "".join(f"event: m\ndata: {json.dumps(e)}\n\n" for e in events)

    async def respond(_: Received) -> Response:
        return PlainTextResponse(text + "data: [DONE]\n\n", media_type="text/event-stream")

    _, found = await asked(respond)
    assert found == (Passage("1", "T", 1.0),)


async def test_a_stream_of_one_passage_per_event_is_read_too() -> None:
    text = "".join(f'data: {{"doc": {{"text": "{t}"}}}}\n\n' for t in "ab")

    async def respond(_: Received) -> Response:
        return PlainTextResponse(text, media_type="text/event-stream; charset=utf-8")

    response = {"items": "events[*].doc", "text": "text"}
    _, found = await asked(respond, role="Retriever", protocol="Http",
                           body="{question}", response=response)  # fmt: skip
    assert [each.text for each in found] == ["a", "b"]


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000, "[" * 100 + "]" * 100])
async def test_an_answer_too_deep_costs_its_sample_only(text: str) -> None:
    async def respond(_: Received) -> Response:
        return PlainTextResponse(text, media_type="application/json")

    with pytest.raises(RetrievalFailed) as caught:
        await asked(respond)
    assert caught.value.cause is FailureCause.BAD_JSON


async def test_an_answer_too_large_is_not_read_to_its_end() -> None:
    async def respond(_: Received) -> Response:
        return JSONResponse({"results": [], "noise": "x" * (17 * 2**20)})

    with pytest.raises(RetrievalFailed) as caught:
        await asked(respond)
    assert caught.value.cause is FailureCause.BAD_JSON
    assert "16 MiB" in str(caught.value)


async def test_a_get_call_carries_the_question_in_its_url() -> None:
    server, found = await asked(
        always([{"text": "Tea"}]),
        "tea & cake",
        role="Retriever",
        protocol="Http",
        method="GET",
        url_end="?q={question}&k={top_k}",
    )
    [received] = server.requests
    assert received.method == "GET"
    assert received.query == {"q": "tea & cake", "k": "3"}
    assert found == (Passage("Tea", "Tea", 1.0),)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_search_server_that_is_down_is_waited_for_and_asked_what_it_answered_before(
    method: str,
) -> None:
    async def down_for_three_calls(received: Received) -> Response:
        is_down = 1 <= received.number <= 3
        return JSONResponse({} if is_down else [{"text": "Tea"}], 503 if is_down else 200)

    told: list[list[str]] = []
    outages = Outages(lambda found: told.append([each.name for each in found]))
    async with serving(down_for_three_calls) as server:
        given = {"name": "kb", "protocol": "Http", "method": method, "cache": False}
        given |= {"url": server.url + "?q={question}", "body": {"q": "{question}"}}
        spec = RetrievalSpec(endpoints=[RetrievalEndpoint.model_validate(given)])
        async with RetrievalClient(spec, {}, retry=ONE_TRY, outages=outages) as client:
            with outages.waited_for():
                for query in ("first", "second"):
                    [found] = await client.retrieve("kb", query, sample="1")
                    assert found.text == "Tea"

    asked = [received.query["q"] for received in server.requests]
    assert asked == ["first", "second", "first", "first", "first", "second"]
    assert {received.method for received in server.requests} == {method}
    bodies = [received.body for received in server.requests]
    assert bodies == [None if method == "GET" else {"q": query} for query in asked]
    assert ["endpoint kb"] in told
