"""The HTTP API of one index: Search-R1's `/retrieve`, RagChat's `/chat`, and `/healthz`.

Must not load anything itself: it returns 503 until the loader puts an index on its `IndexHolder`.

A call may hold any number of queries; what bounds it is memory, MAX_BODY_BYTES of request and
MAX_ANSWER_BYTES of passages, beyond which the answer is 413.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .index import Hit, Index

MAX_BODY_BYTES = 32 * 2**20
MAX_ANSWER_BYTES = 64 * 2**20
MAX_TOP_K = 1000
TOO_LARGE = 413
QUERY_BLOCK = 64
"""Searched for together, so that a call of many queries takes no more memory than one of these."""

Body = TypeVar("Body", bound=BaseModel)


@dataclass
class IndexHolder:
    """Where the loader puts the index; until then `reason` says why there is none."""

    index: Index | None = None
    reason: str = "the index is being loaded"


class BadRequest(Exception):
    """The request cannot be served; `field` is the part of the body at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class TooLarge(BadRequest):
    """The request or its answer takes more memory than one call may."""


class RetrieveRequest(BaseModel):
    """Search-R1's request; `query` is a single-query form."""

    model_config = ConfigDict(strict=True)

    queries: list[str] | None = None
    query: str | None = None
    topk: int = Field(3, ge=1, le=MAX_TOP_K)
    return_scores: bool = False


class ChatRequest(BaseModel):
    """RagChat's request; only Reference calls omit the actor's three fields."""

    model_config = ConfigDict(strict=True)

    context: str
    user_profile: str | None = None
    rewritten_query: str | None = None
    history_summary: str | None = None
    score_threshold: float = Field(0.95, ge=0, le=1)
    top_k: int = Field(3, ge=1, le=MAX_TOP_K)


def build_app(holder: IndexHolder) -> Starlette:
    """Return the web application for `holder`; every refusal gives its reason in `error`.

    Unknown fields are ignored, because clients of these protocols add their own. For a bad request
    `/retrieve` returns 400 and `/chat` 422, with the `field` at fault.
    """

    async def healthz(_: Request) -> Response:
        if holder.index is None:
            return JSONResponse({"error": holder.reason}, 503)
        return JSONResponse({"status": "ok"})

    async def retrieve(request: Request) -> Response:
        return await _serve(request, holder, RetrieveRequest, retrieve_answer, refusal=400)

    async def chat(request: Request) -> Response:
        return await _serve(request, holder, ChatRequest, chat_answer, refusal=422)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/retrieve", retrieve, methods=["POST"]),
            Route("/chat", chat, methods=["POST"]),
        ]
    )


def retrieve_answer(index: Index, body: RetrieveRequest) -> dict[str, object]:
    """Return a list per query: of documents, or of {"document", "score"} with `return_scores`."""
    found = _search(index, body)
    return {"result": [[_found(hit, body.return_scores) for hit in hits] for hits in found]}


def chat_answer(index: Index, body: ChatRequest) -> dict[str, object]:
    """Return the passages found for the joined fields, scores relative to the best one.

    The scores of BM25 and of fused ranks have no scale that a threshold could refer to. With
    relative scores the best passage always scores 1, and `score_threshold` 0.95 keeps those within
    5 % of it.
    """
    fields = (body.rewritten_query, body.user_profile, body.history_summary, body.context)
    [hits] = index.search([" ".join(field for field in fields if field)], body.top_k)
    shares = [(hit.passage, _share(hit.score, hits[0].score)) for hit in hits]
    kept = [(passage, share) for passage, share in shares if share >= body.score_threshold]
    return {"results": [{"id": p.id, "text": p.contents, "score": share} for p, share in kept]}


def _share(score: float, best: float) -> float:
    """Return a score relative to the best one; inner products may be negative, shares are not."""
    if best <= 0:
        return 1.0 if score == best else 0.0
    return max(0.0, score / best)


async def _serve(
    request: Request,
    holder: IndexHolder,
    shape: type[Body],
    answer: Callable[[Index, Body], dict[str, object]],
    *,
    refusal: int,
) -> Response:
    if (index := holder.index) is None:
        return JSONResponse({"error": holder.reason}, 503)
    try:
        text = await _read(request)
        # Parsing and searching are CPU-bound; a thread keeps /healthz responsive.
        found = await asyncio.to_thread(lambda: answer(index, shape.model_validate_json(text)))
        return JSONResponse(found)
    except ValidationError as error:
        return _refused(_blame(error), refusal)
    except TooLarge as error:
        return _refused(error, TOO_LARGE)
    except BadRequest as error:
        return _refused(error, refusal)


async def _read(request: Request) -> bytes:
    """Return the body. Raises TooLarge as soon as it is."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise TooLarge("body", f"has more than {MAX_BODY_BYTES} bytes; send fewer queries")
        parts.append(part)
    return b"".join(parts)


def _search(index: Index, body: RetrieveRequest) -> list[list[Hit]]:
    """Search for all queries, some at a time. Raises TooLarge as soon as the answer is."""
    queries = [body.query] if body.queries is None and body.query is not None else body.queries
    if queries is None:
        raise BadRequest("queries", "is missing; give a list of strings")
    found: list[list[Hit]] = []
    size = 0
    for start in range(0, len(queries), QUERY_BLOCK):
        some = index.search(queries[start : start + QUERY_BLOCK], body.topk)
        size += sum(len(hit.passage.contents) for hits in some for hit in hits)
        if size > MAX_ANSWER_BYTES:
            limit = f"the passages found have more than {MAX_ANSWER_BYTES} characters"
            raise TooLarge("topk", f"{limit}; ask for fewer, or for fewer queries at once")
        found += some
    return found


def _found(hit: Hit, with_score: bool) -> dict[str, object]:
    document: dict[str, object] = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": document, "score": hit.score} if with_score else document


def _blame(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    return BadRequest(".".join(str(part) for part in first["loc"]) or "body", first["msg"])


def _refused(error: BadRequest, status: int) -> Response:
    return JSONResponse({"error": str(error), "field": error.field}, status)
