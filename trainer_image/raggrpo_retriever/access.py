"""Reject requests without the token, and requests of web pages to a server on loopback."""

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from raggrpo_api.fields.http_access import is_authorized, is_loopback_host

HEALTH_PATH = "/healthz"
"""Path that requires no token, because probes have none."""
UNAUTHORIZED, MISDIRECTED = 401, 421


@dataclass(frozen=True, slots=True)
class Access:
    """Which requests are served."""

    token: str = ""
    """Bearer token of all paths except HEALTH_PATH; "" if no token is required."""
    is_local: bool = False
    """Whether the server listens on loopback, so that `Host` must name a loopback address."""


class AccessControl:
    """Middleware that applies an `Access`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or reject a request."""
        rejection = self._rejection(scope) if scope["type"] == "http" else None
        await (rejection or self._app)(scope, receive, send)

    def _rejection(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._access.is_local and not is_loopback_host(host):
            return JSONResponse({"error": f"Host {host!r} is not a loopback address"}, MISDIRECTED)
        if not self._access.token or scope["path"] == HEALTH_PATH:
            return None
        if is_authorized(headers.get("authorization", ""), self._access.token):
            return None
        return JSONResponse(
            {"error": "the bearer token of the retriever is required"},
            UNAUTHORIZED,
            headers={"WWW-Authenticate": "Bearer"},
        )
