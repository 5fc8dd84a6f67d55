"""A real HTTP server whose responses, faults and timeouts are set by the test."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .private_authority import Certificate


@dataclass(frozen=True)
class Received:
    """A received request."""

    body: dict[str, Any]
    headers: dict[str, str]
    number: int
    """Index in the order of arrival, from 0."""
    method: str = "POST"
    query: dict[str, str] = field(default_factory=dict)
    path: str = "/"


Respond = Callable[[Received], Awaitable[Response]]


@dataclass
class FaultyServer:
    """URL of the server and the requests it has received."""

    url: str
    requests: list[Received] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0


@asynccontextmanager
async def serving(
    respond: Respond, certificate: Certificate | None = None
) -> AsyncIterator[FaultyServer]:
    """Serve GET and POST with `respond` on a free port of 127.0.0.1 until the block ends.

    With `certificate`, the server uses TLS.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if certificate else "http"
    faulty = FaultyServer(url=f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/")

    async def endpoint(request: Request) -> Response:
        received = Received(
            json.loads(await request.body() or b"null"),
            dict(request.headers),
            len(faulty.requests),
            request.method,
            dict(request.query_params),
            request.url.path,
        )
        faulty.requests.append(received)
        faulty.in_flight += 1
        faulty.most_in_flight = max(faulty.most_in_flight, faulty.in_flight)
        try:
            return await respond(received)
        finally:
            faulty.in_flight -= 1

    app = Starlette(routes=[Route("/{path:path}", endpoint, methods=["GET", "POST"])])
    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    if certificate:
        config.ssl_certfile, config.ssl_keyfile = certificate.file, certificate.key
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield faulty
    finally:
        task.cancel()  # a graceful shutdown of uvicorn takes 0.2 s per test
        await asyncio.wait([task])
        for running in server.server_state.tasks:
            running.cancel()
        for accepting in server.servers:
            accepting.close()


def always(answer: Any, status: int = 200) -> Respond:
    async def respond(_: Received) -> Response:
        return JSONResponse(answer, status)

    return respond


async def silent(_: Received) -> Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def search_r1(scores: bool = True) -> Respond:
    """Return a function that responds with one passage per query, with the query as its id."""

    async def respond(received: Received) -> Response:
        documents = [{"id": query, "contents": f"about {query}"} for query in _queries(received)]
        if not scores:
            return JSONResponse({"result": [[document] for document in documents]})
        return JSONResponse({"result": [[{"document": d, "score": 0.5}] for d in documents]})

    return respond


def rag_chat(received: Received) -> Response:
    """Return a response with one passage, whose id is the context."""
    context = received.body["context"]
    return JSONResponse({"results": [{"id": context, "text": f"about {context}", "score": 0.5}]})


def _queries(received: Received) -> list[str]:
    queries = received.body["queries"]
    assert isinstance(queries, list)
    return queries
