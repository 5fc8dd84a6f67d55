"""HTTP server of the gateway."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from aiohttp import web

from raggrpo_api.fields.text import one_line
from raggrpo_api.fields.url_host import url_host
from raggrpo_trainer.http.server_log import MAX_DETAIL_CHARACTERS, server_log

from .calls import Call, Session, result_of
from .forwarded_call import ForwardedCall
from .forwarding import Forwarder
from .keys import keys_of_request
from .model_names import Endpoint, ModelNames
from .protocol import (
    ChatRequest,
    CompletionOptions,
    CompletionRequest,
    RequestRejected,
    parse_body,
    parse_request,
)
from .responses import KEEP_ALIVE_FRAME, Reply, event, model, model_list

MAX_BODY_BYTES = 16 << 20
KEEP_ALIVE_SECONDS = 1.0
"""Interval of characters that keep a client waiting; clients time out when they receive nothing."""
RETRY_HEADER = "x-stainless-retry-count"
"""Header by which OpenAI's clients number the retries of a request."""
LOOPBACK = "127.0.0.1"
SUPPORTED = "POST /v1/chat/completions, POST /v1/completions and GET /v1/models"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Completions(Protocol):
    """Completes requests, see `gateway.Gateway`."""

    models: ModelNames
    forwarder: Forwarder

    def session(self, key: str) -> Session | None:
        """Return the open trajectory with a key."""
        ...

    async def complete(self, session: Session, request: CompletionOptions) -> Reply:
        """Return the completion of a request. Raises RequestRejected."""
        ...

    def token_text(self, token: int) -> str:
        """Return the text of a token."""
        ...


class GatewayServer:
    """Serves OpenAI's endpoints on the current event loop."""

    def __init__(
        self, completions: Completions, keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    ) -> None:
        self._completions = completions
        self._keep_alive_seconds = keep_alive_seconds
        app = web.Application(middlewares=[self._describe_errors], client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._complete_chat)
        app.router.add_post("/v1/completions", self._complete_text)
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{name:.+}", self._show_model)
        # A handler ends with its client; the call continues for the client's retry.
        # A decompressed body would use its memory before aiohttp compares its size with the limit.
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=server_log,
            auto_decompress=False,
            handler_cancellation=True,
            shutdown_timeout=1.0,
        )

    async def start(self, host: str | None, port: int) -> str:
        """Listen, and return the base URL. Raises OSError if the port is in use."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return f"http://{url_host(host or LOOPBACK)}:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        await self._runner.cleanup()

    async def _complete_chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, ChatRequest)

    async def _complete_text(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, CompletionRequest)

    async def _complete(
        self, request: web.Request, kind: type[CompletionOptions]
    ) -> web.StreamResponse:
        session, body = await self._read(request)
        value = parse_body(body)
        if (endpoint := self._endpoint(value)) is not None:
            return await self._forward(request, session, endpoint, value["model"], body)
        parsed = parse_request(kind, value)
        call = session.join(
            hashlib.sha256(request.path.encode() + b"\n" + body).digest(),
            lambda: _is_connected(request),
            request.headers.get(RETRY_HEADER, "0") != "0",
            lambda: self._completions.complete(session, parsed),
        )
        return await self._deliver(request, call, bool(parsed.stream))

    async def _deliver(
        self, request: web.Request, call: Call, is_streamed: bool
    ) -> web.StreamResponse:
        """Send the reply of a call; send white space or comments until it is complete."""
        kind = "text/event-stream" if is_streamed else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind})
        while not (await asyncio.wait({call.reply}, timeout=self._keep_alive_seconds))[0]:
            if not response.prepared:
                await response.prepare(request)
            await response.write(KEEP_ALIVE_FRAME if is_streamed else b" ")
        try:
            reply = result_of(call.reply)
        except RequestRejected as rejected:
            if not response.prepared:
                raise
            return await _end_with_error(request, response, rejected, is_streamed)
        text = self._completions.token_text
        content = b"".join(reply.frames(text)) if is_streamed else reply.json(text)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof(content)
        call.is_delivered |= _is_connected(request)
        return response

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        session, body = await self._read(request)
        value = parse_body(body)
        if (endpoint := self._endpoint(value)) is None:
            raise _unsupported(request, ", or add a model with embeddings to rollout.agent.forward")
        return await self._forward(request, session, endpoint, value["model"], body)

    async def _read(self, request: web.Request) -> tuple[Session, bytes]:
        """Return the trajectory and the body of a call. Raises RequestRejected."""
        session = self._session(request)
        body = await request.read()
        session.require_open()  # it may have ended while the body arrived
        return session, body

    def _endpoint(self, value: Mapping[str, Any]) -> Endpoint | None:
        """Return the endpoint of the requested model, or None for the policy."""
        model = value.get("model")
        return self._completions.models.endpoint(model) if isinstance(model, str) else None

    async def _forward(
        self, request: web.Request, session: Session, endpoint: Endpoint, name: str, body: bytes
    ) -> web.StreamResponse:
        """Pass a call on to the endpoint of a model, and its response to the client."""
        session.trajectory.count_untrained(name)
        call = ForwardedCall(session.trajectory, endpoint, name, session.timer)
        return await session.run(call.deliver(request, self._completions.forwarder, body))

    async def _list_models(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response(model_list(self._completions.models.listed()))

    async def _show_model(self, request: web.Request) -> web.Response:
        self._session(request)
        name = request.match_info["name"]
        self._completions.models.endpoint(name)
        return web.json_response(model(name))

    def _session(self, request: web.Request) -> Session:
        if (session := self._find_session(request.headers)) is not None:
            return session
        message = "the API key belongs to no running trajectory"
        raise RequestRejected(401, message, code="invalid_api_key")

    def _find_session(self, headers: Mapping[str, str]) -> Session | None:
        sessions = map(self._completions.session, keys_of_request(headers))
        return next((each for each in sessions if each is not None), None)

    @web.middleware
    async def _describe_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # While the body arrives, the trajectory may end and its key pass to another one.
        session = self._find_session(request.headers)
        try:
            _require_plain_body(request)
            return await handler(request)
        except RequestRejected as error:
            rejected = error
        except web.HTTPException as error:
            rejected = _rejection_of(request, error)
        except web.RequestPayloadError as error:
            detail = one_line(str(error), MAX_DETAIL_CHARACTERS)
            rejected = RequestRejected(400, f"the body cannot be read: {detail}")
        if session is not None and not session.is_closed and rejected.status != 410:
            session.trajectory.record_failure(rejected.cause, str(rejected))
        return web.json_response(rejected.body, status=rejected.status)


def _is_connected(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()


def _require_plain_body(request: web.Request) -> None:
    """Raise RequestRejected if the body is compressed."""
    for encoding in request.headers.getall("Content-Encoding", ()):
        if encoding.strip().lower() not in ("", "identity"):
            message = f"Content-Encoding {encoding[:40]} is not supported; send a plain body"
            raise RequestRejected(415, message, code="unsupported_encoding")


async def _end_with_error(
    request: web.Request,
    response: web.StreamResponse,
    rejected: RequestRejected,
    is_streamed: bool,
) -> web.StreamResponse:
    """Report an error after the status has been sent."""
    if is_streamed:
        await response.write(event(rejected.body))
        await response.write_eof()
    elif request.transport is not None:
        request.transport.abort()  # the client's retry joins the call and receives the status
    return response


def _rejection_of(request: web.Request, error: web.HTTPException) -> RequestRejected:
    """Return the error for a request that matches no endpoint or is too large."""
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        message = f"the body has more than {MAX_BODY_BYTES >> 20} MiB"
        return RequestRejected(error.status, message)
    return _unsupported(request, status=error.status)


def _unsupported(request: web.Request, remedy: str = "", status: int = 404) -> RequestRejected:
    message = f"{request.method} {request.path} is not supported; send {SUPPORTED}{remedy}"
    return RequestRejected(status, message, code="unsupported_endpoint")
