"""The HTTP API of one index: Search-R1's `/retrieve`, RagChat's `/chat`, and `/healthz`.

Must not load anything: the status is 503 until the loader sets the index of the `IndexHolder`. The
status is 413 if the request body exceeds MAX_BODY_BYTES, the passages exceed MAX_RESPONSE_BYTES, or
the queries exceed MAX_QUERIES, MAX_QUERY_CHARACTERS or MAX_CALL_CHARACTERS.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from raggrpo_api.foreign_files import exceeds_json_memory

from .access import HEALTH_PATH, Access, AccessControl
from .index import Hit, Index

MAX_BODY_BYTES = 32 * 2**20
MAX_RESPONSE_BYTES = 64 * 2**20
MAX_VALUES_BYTES = 64 * 2**20
"""Estimated memory of the values in a request: a million numbers, or commas of its texts."""
MAX_QUERIES = 10_000
MAX_QUERY_CHARACTERS = 2**18
MAX_CALL_CHARACTERS = 2**22
"""Maximum length of all queries of a call; each word of a query is searched for."""
MAX_TOP_K = 1000
TOO_LARGE = 413
QUERY_BLOCK = 64
"""Number of queries per search, which limits the memory that a large call needs."""

Body = TypeVar("Body", bound=BaseModel)


@dataclass
class IndexHolder:
    """Receives the index from the loader; `reason` explains why none is available yet."""

    index: Index | None = None
    reason: str = "loading the index"


class BadRequest(Exception):
    """The request is invalid; `field` names the invalid field of the body."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class TooLarge(BadRequest):
    """The request or its response exceeds a memory limit."""


class RetrieveRequest(BaseModel):
    """A Search-R1 request; `query` may replace `queries` for a single query."""

    model_config = ConfigDict(strict=True)

    # Only the first error is reported; millions of them need more memory than the request.
    queries: list[str] | None = Field(None, fail_fast=True)
    query: str | None = None
    topk: int = Field(3, ge=1, le=MAX_TOP_K)
    return_scores: bool = False


class ChatRequest(BaseModel):
    """A RagChat request; calls of role Reference omit the three fields that the actor generates."""

    model_config = ConfigDict(strict=True)

    context: str
    user_profile: str | None = None
    rewritten_query: str | None = None
    history_summary: str | None = None
    score_threshold: float = Field(0.95, ge=0, le=1)
    top_k: int = Field(3, ge=1, le=MAX_TOP_K)


def build_app(holder: IndexHolder, access: Access = Access()) -> Starlette:
    """Return the web application; error responses contain the reason in `error`.

    Unknown fields are ignored, because clients of these protocols add their own. Invalid requests
    get status 400 from `/retrieve` and 422 from `/chat`, with the name of the invalid `field`.
    """

    async def healthz(_: Request) -> Response:
        if holder.index is None:
            return JSONResponse({"error": holder.reason}, 503)
        return JSONResponse({"status": "ok"})

    async def retrieve(request: Request) -> Response:
        return await _serve(request, holder, RetrieveRequest, retrieve_response, error_status=400)

    async def chat(request: Request) -> Response:
        return await _serve(request, holder, ChatRequest, chat_response, error_status=422)

    return Starlette(
        routes=[
            Route(HEALTH_PATH, healthz),
            Route("/retrieve", retrieve, methods=["POST"]),
            Route("/chat", chat, methods=["POST"]),
        ],
        middleware=[Middleware(AccessControl, access=access)],
    )


def retrieve_response(index: Index, body: RetrieveRequest) -> dict[str, object]:
    """Return one list per query: documents, or {"document", "score"} with `return_scores`."""
    results = _search(index, body)
    return {"result": [[_document(hit, body.return_scores) for hit in hits] for hits in results]}


def chat_response(index: Index, body: ChatRequest) -> dict[str, object]:
    """Return the hits for the concatenated fields, with scores relative to the best hit.

    Scores of BM25 and of rank fusion have no absolute scale for a threshold. With relative scores
    the best passage has score 1, and `score_threshold` 0.95 keeps the passages within 5 % of it.
    """
    fields = (body.rewritten_query, body.user_profile, body.history_summary, body.context)
    query = " ".join(field for field in fields if field)
    _require_short(query, "context")
    [hits] = index.search([query], body.top_k)
    scored = [(hit.passage, _relative_score(hit.score, hits[0].score)) for hit in hits]
    return {
        "results": [
            {"id": passage.id, "text": passage.contents, "score": score}
            for passage, score in scored
            if score >= body.score_threshold
        ]
    }


def _relative_score(score: float, best: float) -> float:
    """Return `score / best`, but at least 0, because inner products may be negative."""
    if best <= 0:
        return 1.0 if score == best else 0.0
    return max(0.0, score / best)


async def _serve(
    request: Request,
    holder: IndexHolder,
    model: type[Body],
    respond: Callable[[Index, Body], dict[str, object]],
    *,
    error_status: int,
) -> Response:
    if (index := holder.index) is None:
        return JSONResponse({"error": holder.reason}, 503)
    try:
        content = await _read(request)
        # Parsing and searching are CPU-bound; a thread keeps /healthz responsive.
        response = await asyncio.to_thread(lambda: respond(index, _parse(model, content)))
        return JSONResponse(response)
    except ClientDisconnect:
        return Response(status_code=error_status)  # no client receives it
    except ValidationError as error:
        return _error_response(_bad_request(error), error_status)
    except TooLarge as error:
        return _error_response(error, TOO_LARGE)
    except BadRequest as error:
        return _error_response(error, error_status)


async def _read(request: Request) -> bytes:
    """Return the body. Raises TooLarge beyond MAX_BODY_BYTES."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise TooLarge(
                "body", f"the request exceeds {MAX_BODY_BYTES} bytes; send fewer queries"
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _parse(model: type[Body], content: bytes) -> Body:
    """Return the request in a body. Raises TooLarge or ValidationError."""
    if exceeds_json_memory(content, MAX_VALUES_BYTES):
        raise TooLarge(
            "body",
            f"the request has too many values, which may use {MAX_VALUES_BYTES} bytes of memory; "
            "send fewer queries",
        )
    return model.model_validate_json(content)


def _search(index: Index, body: RetrieveRequest) -> list[list[Hit]]:
    """Return the hits of all queries. Raises TooLarge beyond MAX_RESPONSE_BYTES."""
    queries = [body.query] if body.queries is None and body.query is not None else body.queries
    if queries is None:
        raise BadRequest("queries", "the field is required; send a list of strings")
    _require_few(queries, "query" if body.queries is None else "queries")
    results: list[list[Hit]] = []
    size = 0
    for start in range(0, len(queries), QUERY_BLOCK):
        block = index.search(queries[start : start + QUERY_BLOCK], body.topk)
        size += sum(len(hit.passage.contents) for hits in block for hit in hits)
        if size > MAX_RESPONSE_BYTES:
            problem = f"the response would exceed {MAX_RESPONSE_BYTES} characters"
            raise TooLarge("topk", f"{problem}; decrease topk or send fewer queries")
        results += block
    return results


def _require_few(queries: Sequence[str], field: str) -> None:
    """Raise TooLarge if a call has too many or too long queries."""
    if len(queries) > MAX_QUERIES:
        problem = f"the call has {len(queries):,} queries, limit {MAX_QUERIES:,}"
        raise TooLarge(field, f"{problem}; send fewer queries per call")
    for number, query in enumerate(queries):
        _require_short(query, field if field == "query" else f"{field}.{number}")
    size = sum(map(len, queries))
    if size > MAX_CALL_CHARACTERS:
        problem = f"the queries have {size:,} characters, limit {MAX_CALL_CHARACTERS:,}"
        raise TooLarge(field, f"{problem}; send fewer queries per call")


def _require_short(query: str, field: str) -> None:
    if len(query) > MAX_QUERY_CHARACTERS:
        problem = f"the query has {len(query):,} characters, limit {MAX_QUERY_CHARACTERS:,}"
        raise TooLarge(field, f"{problem}; send a shorter query")


def _document(hit: Hit, with_score: bool) -> dict[str, object]:
    document: dict[str, object] = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": document, "score": hit.score} if with_score else document


def _bad_request(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    return BadRequest(".".join(str(key) for key in first["loc"]) or "body", first["msg"])


def _error_response(error: BadRequest, status: int) -> Response:
    return JSONResponse({"error": str(error), "field": error.field}, status)
