"""The HTTP API of one index: Search-R1's `/retrieve`, RagChat's `/chat`, and `/healthz`.

Must not load anything itself: it returns 503 until the loader puts an index on its `Shelf`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .index import Bm25Index, Hit, Index

MAX_QUERIES = 1024  # per request; the trainer's client batches 64
MAX_TOP_K = 1000

Body = TypeVar("Body", bound=BaseModel)


@dataclass
class Shelf:
    """Where the loader puts the index; until then `reason` says why there is none."""

    index: Index | None = None
    reason: str = "the index is being loaded"


class BadRequest(Exception):
    """The request cannot be served; `field` is the part of the body at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class RetrieveRequest(BaseModel):
    """Search-R1's request; `query` is a single-query form, `vectors` is for dense indexes."""

    model_config = ConfigDict(strict=True)

    queries: list[str] | None = Field(None, max_length=MAX_QUERIES)
    query: str | None = None
    vectors: list[list[FiniteFloat]] | None = Field(None, max_length=MAX_QUERIES)
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


def build_app(shelf: Shelf) -> Starlette:
    """Return the web application for `shelf`; every refusal gives its reason in `error`.

    Unknown fields are ignored, because clients of these protocols add their own. For a bad request
    `/retrieve` returns 400 and `/chat` 422, with the `field` at fault.
    """

    async def healthz(_: Request) -> Response:
        if shelf.index is None:
            return JSONResponse({"error": shelf.reason}, 503)
        return JSONResponse({"status": "ok"})

    async def retrieve(request: Request) -> Response:
        return await _serve(request, shelf, RetrieveRequest, retrieve_answer, refusal=400)

    async def chat(request: Request) -> Response:
        return await _serve(request, shelf, ChatRequest, chat_answer, refusal=422)

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

    BM25 scores have no upper bound for a threshold to refer to. With relative scores the best
    passage always scores 1, and `score_threshold` 0.95 keeps those within 5 % of it.
    """
    if not isinstance(index, Bm25Index):
        raise BadRequest("context", "is text, but this index finds vectors only; use /retrieve")
    fields = (body.rewritten_query, body.user_profile, body.history_summary, body.context)
    [hits] = index.search([" ".join(field for field in fields if field)], body.top_k)
    shares = [(hit.passage, hit.score / hits[0].score) for hit in hits]
    kept = [(passage, share) for passage, share in shares if share >= body.score_threshold]
    return {"results": [{"id": p.id, "text": p.contents, "score": share} for p, share in kept]}


async def _serve(
    request: Request,
    shelf: Shelf,
    shape: type[Body],
    answer: Callable[[Index, Body], dict[str, object]],
    *,
    refusal: int,
) -> Response:
    if shelf.index is None:
        return JSONResponse({"error": shelf.reason}, 503)
    try:
        body = shape.model_validate_json(await request.body())
    except ValidationError as error:
        return _refused(_blame(error), refusal)
    try:
        # Searching is CPU-bound; a thread keeps /healthz responsive.
        return JSONResponse(await asyncio.to_thread(answer, shelf.index, body))
    except BadRequest as error:
        return _refused(error, refusal)


def _search(index: Index, body: RetrieveRequest) -> list[list[Hit]]:
    texts = [body.query] if body.queries is None and body.query is not None else body.queries
    if isinstance(index, Bm25Index):
        if texts is None:
            raise BadRequest("queries", "is missing; this index wants a list of strings")
        return index.search(texts, body.topk)
    if body.vectors is None:
        raise BadRequest("vectors", "is missing; this index wants a list of vectors, not text")
    if any(len(vector) != index.dimension for vector in body.vectors):
        raise BadRequest("vectors", f"each must have {index.dimension} numbers")
    with np.errstate(over="ignore"):  # values beyond float32 are caught below
        queries = np.array(body.vectors, np.float32).reshape(-1, index.dimension)
    if not np.isfinite(queries).all():
        raise BadRequest("vectors", "holds a number beyond the range of float32")
    return index.search(queries, body.topk)


def _found(hit: Hit, with_score: bool) -> dict[str, object]:
    document: dict[str, object] = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": document, "score": hit.score} if with_score else document


def _blame(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    return BadRequest(".".join(str(part) for part in first["loc"]) or "body", first["msg"])


def _refused(error: BadRequest, status: int) -> Response:
    return JSONResponse({"error": str(error), "field": error.field}, status)
