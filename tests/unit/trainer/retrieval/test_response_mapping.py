"""Request templates and response mappings for RAG services with other formats."""

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from raggrpo_api.spec.retrieval import ResponseMapping, RetrievalEndpoint, RetrievalSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.json_service import ONE_TRY, RetryPolicy
from raggrpo_trainer.http.responses import Stream
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.retrieval import response_mapping
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.retrieval.passage import Passage, Query
from raggrpo_trainer.retrieval.protocols import request_for
from raggrpo_trainer.retrieval.response_mapping import map_response
from raggrpo_trainer.sample_failures import RetrievalFailed
from support.servers.faulty_server import FaultyServer, Received, Respond, always, serving

_HITS = [
    {"ref": 7, "body": "Savings pay 2 %.", "rel": 0.9},
    {"ref": 8, "body": "Loans cost 5 %.", "rel": 0.4},
]
BANK = {"code": 0, "payload": {"hits": _HITS}}
"""Results two levels down, with other field names and numeric ids."""
LIBRARY = [{"node": {"id": "a", "text": "Tea is a drink."}, "score": "1.5"}]
"""A bare list of nodes, with scores as text."""
SHOP = {"groups": [{"docs": [{"sku": "s1", "meta": {"copy": "Red shoes"}}]},
                   {"docs": [{"sku": "s2", "meta": {"copy": "Blue shoes"}}]}]}  # fmt: skip
"""Results in groups, without scores."""


async def fetch(
    respond: Respond, query: str = "tea", **values: Any
) -> tuple[FaultyServer, tuple[Passage, ...]]:
    columns = values.pop("columns", {})
    async with serving(respond) as server:
        fields = {"name": "kb", "role": "Reference", "protocol": "RagChat"}
        url = server.url + values.pop("url_end", "")
        endpoint = RetrievalEndpoint.model_validate({**fields, "url": url, **values})
        spec = RetrievalSpec(endpoints=[endpoint])
        async with RetrievalClient(spec, {}, retry=RetryPolicy(retries=0)) as client:
            result = await client.retrieve("kb", query, sample="1", columns=columns)
    return server, result


@pytest.mark.row("D6")
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
async def test_responses_of_different_shapes_are_mapped(
    answer: Any, response: dict[str, str], expected: tuple[Passage, ...]
) -> None:
    _, result = await fetch(always(answer), response=response, role="Retriever", protocol="Http",
                           body={"q": "{question}"})  # fmt: skip
    assert result == expected


@pytest.mark.parametrize(
    "answer",
    [
        {"results": [{"id": "1", "text": "Tea", "score": 0.5}]},
        {"data": [{"id": "1", "content": "Tea", "score": 0.5}]},
        {"hits": {"hits": [{"_id": "1", "_score": 0.5, "_source": {"text": "Tea"}}]}},
        [{"id": "1", "text": "Tea", "score": 0.5}],
    ],
)
async def test_default_response_shapes_do_not_need_mapping(answer: Any) -> None:
    _, result = await fetch(always(answer))
    assert result == (Passage("1", "Tea", 0.5),)


async def test_response_mismatch_error_shows_shape_and_suggested_mapping() -> None:
    with pytest.raises(RetrievalFailed) as caught:
        await fetch(always(BANK))
    assert caught.value.cause is FailureCause.MISSING_FIELD
    assert "response: {items: payload.hits, id: ref, text: body, score: rel}" in str(caught.value)
    assert (
        "received {code: number, payload: {hits: [2 × {ref: number, body: text, rel: number}]}}"
        in str(caught.value)
    )
    assert "Savings" not in str(caught.value)


@pytest.mark.row("D6")
async def test_body_template_accepts_json_values_and_sample_fields() -> None:
    body = {
        "tenant": "acme-{region}",
        "limits": {"top": "{top_k}", "exact": True, "boost": [1, 2.5, None]},
        "filter": "{price}",
        "literal": "{{question}} { text }",
    }
    server, _ = await fetch(
        always({"results": []}), extraBody=body, columns={"region": "EU", "price": {"max": 3}}
    )
    sent = server.requests[0].body
    assert sent["tenant"] == "acme-EU"
    assert sent["limits"] == {"top": 3, "exact": True, "boost": [1, 2.5, None]}
    assert sent["filter"] == {"max": 3}
    assert sent["literal"] == "{question} { text }"


@pytest.mark.row("D6")
async def test_retrieval_calls_have_unique_message_ids() -> None:
    ids = set()
    for query in ("tea", "coffee"):
        server, _ = await fetch(always([]), query, extraBody={"message_id": "{message_id}"})
        ids |= {each.body["message_id"] for each in server.requests}
    assert len(ids) == 2
    assert all(len(each) == 32 for each in ids)


@pytest.mark.row("D6")
async def test_streamed_response_is_read_completely() -> None:
    events = [{"delta": "Te"}, {"delta": "a"}, {"results": [{"id": "1", "text": "T", "score": 1}]}]
    text = ": hello\n\n" + "".join(f"event: m\ndata: {json.dumps(e)}\n\n" for e in events)

    async def respond(_: Received) -> Response:
        return PlainTextResponse(text + "data: [DONE]\n\n", media_type="text/event-stream")

    _, result = await fetch(respond)
    assert result == (Passage("1", "T", 1.0),)


async def test_stream_with_one_passage_per_event_is_read() -> None:
    text = "".join(f'data: {{"doc": {{"text": "{t}"}}}}\n\n' for t in "ab")

    async def respond(_: Received) -> Response:
        return PlainTextResponse(text, media_type="text/event-stream; charset=utf-8")

    response = {"items": "events[*].doc", "text": "text"}
    _, result = await fetch(respond, role="Retriever", protocol="Http",
                           body="{question}", response=response)  # fmt: skip
    assert [each.text for each in result] == ["a", "b"]


@pytest.mark.row("D6")
@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000, "[" * 100 + "]" * 100])
async def test_deeply_nested_response_fails_only_its_sample(text: str) -> None:
    async def respond(_: Received) -> Response:
        return PlainTextResponse(text, media_type="application/json")

    with pytest.raises(RetrievalFailed) as caught:
        await fetch(respond)
    assert caught.value.cause is FailureCause.BAD_JSON


@pytest.mark.row("D6")
async def test_oversized_response_is_not_read_completely() -> None:
    async def respond(_: Received) -> Response:
        return JSONResponse({"results": [], "noise": "x" * (17 * 2**20)})

    with pytest.raises(RetrievalFailed) as caught:
        await fetch(respond)
    assert caught.value.cause is FailureCause.BAD_JSON
    assert "16 MiB" in str(caught.value)


async def test_get_request_sends_query_in_url() -> None:
    server, result = await fetch(
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
    assert result == (Passage("Tea", "Tea", 1.0),)


def make_url(path: str, query: str) -> str:
    fields = {"name": "kb", "protocol": "Http", "method": "GET", "url": f"http://kb{path}"}
    endpoint = RetrievalEndpoint.model_validate(fields)
    return request_for(endpoint, [Query(query)]).url


@pytest.mark.parametrize("query", [".", ".."])
@pytest.mark.parametrize("path", ["/a/{question}", "/{question}/v1", "/a/{question}?k=1"])
def test_query_cannot_select_another_path(path: str, query: str) -> None:
    with pytest.raises(CallFailed, match=r"has the value \. or \.\.") as caught:
        make_url(path, query)
    assert caught.value.cause is FailureCause.BAD_URL


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("...", "/..."),
        ("../a", "/..%2Fa"),
        ("%2e%2e", "/%252e%252e"),
        ("a..", "/a.."),
        ("?x", "/%3Fx"),
    ],
)
def test_query_stays_one_segment_of_the_path(query: str, path: str) -> None:
    assert make_url("/{question}", query) == f"http://kb{path}"
    assert make_url("?q={question}", "..") == "http://kb?q=.."


@pytest.mark.row("D7")
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_unavailable_search_server_is_probed_with_earlier_request(
    method: str,
) -> None:
    async def down_for_three_calls(received: Received) -> Response:
        is_down = 1 <= received.number <= 3
        return JSONResponse({} if is_down else [{"text": "Tea"}], 503 if is_down else 200)

    reported: list[list[str]] = []
    outages = Outages(lambda down: reported.append([each.name for each in down]))
    async with serving(down_for_three_calls) as server:
        fields = {"name": "kb", "protocol": "Http", "method": method, "cache": False}
        fields |= {"url": server.url + "?q={question}", "body": {"q": "{question}"}}
        spec = RetrievalSpec(endpoints=[RetrievalEndpoint.model_validate(fields)])
        async with RetrievalClient(spec, {}, retry=ONE_TRY, outages=outages) as client:
            with outages.reporting():
                for query in ("first", "second"):
                    [result] = await client.retrieve("kb", query, sample="1")
                    assert result.text == "Tea"

    queries = [received.query["q"] for received in server.requests]
    assert queries == ["first", "second", "first", "first", "first", "second"]
    assert {received.method for received in server.requests} == {method}
    bodies = [received.body for received in server.requests]
    assert bodies == [None if method == "GET" else {"q": query} for query in queries]
    assert ["endpoint kb"] in reported


def make_stream(text: str, kind: str = "text/event-stream") -> Respond:
    async def respond(_: Received) -> Response:
        return Response(text, media_type=kind)

    return respond


def make_events(*values: Any) -> str:
    return "".join(f"data: {json.dumps(value)}\n\n" for value in values)


A, B = {"id": "1", "text": "A"}, {"id": "2", "text": "B"}
HTTP: dict[str, Any] = {"role": "Retriever", "protocol": "Http", "body": "{question}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (make_events({"documents": [A]}, {"documents": [B]}), ["A", "B"]),
        (make_events({"documents": [A]}, {"documents": [A, B]}), ["A", "B"]),
        (
            make_events({"documents": [A]}, {"documents": [{**A, "text": "A whole"}, B]}),
            ["A whole", "B"],
        ),
        (make_events({"documents": [A, B]}, {"documents": [B]}), ["A", "B"]),
        (make_events({"documents": [A]}, {"answer": "done"}, {"documents": []}), ["A"]),
        (make_events({"documents": []}), []),
        (
            make_events(
                {"documents": [{"id": "1", "text": text} for text in ("B", "A")]},
                {"documents": [{"id": "1", "text": text} for text in ("AB", "BC", "B-")]},
            ),
            ["AB", "BC", "B-"],
        ),
        (
            make_events(
                {"documents": [{"id": "1", "text": text} for text in ("B", "A")]},
                {"documents": [{"id": "1", "text": "B"}, {"id": "2", "text": "A"}]},
            ),
            ["B", "A", "A"],
        ),
    ],
)
async def test_stream_event_results_are_merged(text: str, expected: list[str]) -> None:
    _, result = await fetch(make_stream(text), **HTTP)
    assert [each.text for each in result] == expected


def test_results_of_stream_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_mapping, "MAX_STREAM_ITEMS", 1000)
    events = [[{"text": str(i)} for i in range(100)]] * 10
    assert len(map_response(Stream([*events]), ResponseMapping())) == 100
    with pytest.raises(CallFailed, match="more than 1,000 results in total; return fewer"):
        map_response(Stream([*events, [{"text": "0"}]]), ResponseMapping())


class CountingText(str):
    """A text that counts how often it is compared."""

    comparisons = 0

    def startswith(self, *values: Any) -> bool:
        CountingText.comparisons += 1
        return super().startswith(*values)


def test_repeated_results_with_one_id_are_compared_in_linear_time() -> None:
    items = [{"id": "1", "text": CountingText(i)} for i in range(1000, 1500)]
    result = map_response(Stream([items, items[::-1]]), ResponseMapping())
    assert [each.text for each in result] == [each["text"] for each in items[::-1]]
    assert 500 <= CountingText.comparisons <= 1000


@pytest.mark.parametrize(
    "text",
    [
        make_events({"results": [A]}, {"error": "the reranker failed"}),
        make_events({"results": []}, {"error": {"message": "the reranker failed"}}),
        make_events({"results": [A]})
        + 'event: error\ndata: {"message": "the reranker failed"}\n\n',
        "event: error\ndata: the reranker failed\n\n",
    ],
)
async def test_stream_error_event_fails_call(text: str) -> None:
    with pytest.raises(RetrievalFailed, match="the reranker failed") as caught:
        await fetch(make_stream(text), **HTTP)
    assert caught.value.cause is FailureCause.SERVICE_ERROR


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("event: ping\ndata: ping\n\n" + make_events({"results": [A]}), "text/event-stream"),
        ("data:\n\n" + make_events({"results": [A]}) + "data: [DONE] \n\n", "text/event-stream"),
        (make_events({"results": [A]}), "text/plain"),
        ('{"results": [{"id": "1", "text": "A"}]}\n{"results": []}\n', "application/json"),
    ],
)
async def test_stream_heartbeats_and_wrong_content_types_are_accepted(text: str, kind: str) -> None:
    _, result = await fetch(make_stream(text, kind), **HTTP)
    assert [each.text for each in result] == ["A"]


@pytest.mark.row("D6")
@pytest.mark.parametrize("separator", ["\u2028", "\u0085"])
async def test_json_lines_are_split_at_newlines_only(separator: str) -> None:
    answer = json.dumps({"results": [{"text": f"A{separator}B"}]}, ensure_ascii=False)
    _, result = await fetch(make_stream(answer + "\r\n", "application/x-ndjson"), **HTTP)
    assert [each.text for each in result] == [f"A{separator}B"]


@pytest.mark.parametrize("text", ['data: {"resu', "data: ping\n\n"])
async def test_truncated_stream_is_rejected(text: str) -> None:
    before = make_events({"results": [A]}) if "{" in text else ""
    with pytest.raises(RetrievalFailed) as caught:
        await fetch(make_stream(before + text), **HTTP)
    assert caught.value.cause is FailureCause.BAD_JSON


@pytest.mark.parametrize(
    ("answer", "reported", "transient"),
    [
        ({"code": 401, "message": "token expired", "data": []}, "401 token expired", False),
        ({"status": "503", "msg": "loading", "data": None}, "503 loading", True),
        ({"success": False, "detail": "no such index", "data": []}, "no such index", False),
        ({"error": {"message": "no such index"}, "results": []}, "no such index", False),
        ({"errors": [{"message": "no such index"}], "data": {}}, "no such index", False),
    ],
)
async def test_empty_response_with_error_fails_call(
    answer: Any, reported: str, transient: bool
) -> None:
    with pytest.raises(RetrievalFailed) as caught:
        await fetch(always(answer))
    failure = caught.value
    assert (failure.cause, failure.transient) == (FailureCause.SERVICE_ERROR, transient)
    assert reported in failure.detail


async def test_batch_error_without_passages_fails_call() -> None:
    with pytest.raises(RetrievalFailed, match="token expired"):
        await fetch(always({"result": [[]], "error": "token expired"}), protocol="SearchR1",
                    role="Retriever")  # fmt: skip


async def test_service_error_masks_secrets() -> None:
    answer = {"code": 401, "message": "no such key: s3cret-token", "data": []}
    async with serving(always(answer)) as server:
        fields = {"name": "kb", "protocol": "RagChat", "role": "Reference", "url": server.url}
        spec = RetrievalSpec(endpoints=[RetrievalEndpoint.model_validate(fields)])
        headers = {"kb": {"Authorization": "Bearer s3cret-token"}}
        async with RetrievalClient(spec, headers, retry=ONE_TRY) as client:
            with pytest.raises(RetrievalFailed) as caught:
                await client.retrieve("kb", "tea", sample="1")
    assert "no such key: ***" in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        {"code": 0, "data": []},
        {"code": 200, "error": None, "data": []},
        {"error": {"code": 0}, "data": []},
    ],
)
async def test_empty_response_without_error_is_success(answer: Any) -> None:
    _, result = await fetch(always(answer))
    assert result == ()


@pytest.mark.parametrize(
    ("answer", "mapping"),
    [
        (
            {"ids": [["doc-1"]], "documents": [["A long text"]], "distances": [[0.1]]},
            'response: {items: "documents[*]", text: $}',
        ),
        (
            {"response": {"docs": [{"id": "doc-17", "text": ["several words"]}]}},
            "response: {items: response.docs, id: id, text: text}",
        ),
        (
            {"code": 200, "data": {"list": [{"id": "1", "type": "a type of chunk", "q": "Tea is",
             "score": [{"type": "embedding", "value": 0.5, "index": 0}]}]}},
            'response: {items: data.list, id: id, text: q, score: "score[0].value"}',
        ),
        (
            {"found": [{"sourceUrl": "http://a/very/long/address", "q": "Tea", "a": "A drink"}]},
            "response: {items: found, text: a}",
        ),
    ],
)  # fmt: skip
async def test_text_mapping_suggestion_excludes_ids_types_and_urls(
    answer: Any, mapping: str
) -> None:
    with pytest.raises(RetrievalFailed) as caught:
        await fetch(always(answer), role="Retriever", protocol="Http", body="{question}")
    assert f"set {mapping};" in caught.value.detail


async def test_mapping_is_not_suggested_without_text_values() -> None:
    with pytest.raises(RetrievalFailed) as caught:
        await fetch(always({"found": {"ids": ["doc-1"], "chunk": [{"docId": "a b c"}]}}), **HTTP)
    assert "set response" not in caught.value.detail


async def test_null_search_results_are_skipped() -> None:
    _, result = await fetch(always({"results": [None, A, None]}), **HTTP)
    assert [each.text for each in result] == ["A"]
    _, result = await fetch(always({"result": [[None, {"document": A}]]}), role="Retriever",
                           protocol="SearchR1")  # fmt: skip
    assert [each.text for each in result] == ["A"]


async def test_result_without_text_is_reported_with_number_and_shape() -> None:
    with pytest.raises(RetrievalFailed) as caught:
        await fetch(always({"results": [A, {"id": 2, "title": "B"}]}), **HTTP)
    assert "results: result 2 of 2 has no text at any default path" in caught.value.detail
    assert "received {id: number, title: text} as result 2" in caught.value.detail


async def test_single_item_list_is_accepted_as_text() -> None:
    _, result = await fetch(always({"docs": [{"id": "1", "text": ["A"]}]}), **HTTP)
    assert result == (Passage("1", "A", 1.0),)
