"""Reads an attempt's GET /progress, with limits on time and size."""

import logging

import httpx
from pydantic import ValidationError

from raggrpo_api.names import MAX_PROGRESS_BYTES
from raggrpo_api.progress import Progress

from .errors import AccessRefused

TIMEOUT_SECONDS = 3.0
log = logging.getLogger(__name__)


class ProgressClient:
    """The progress server of one Ray cluster."""

    def __init__(
        self, address: str, token: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=address,
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def read(self) -> Progress | None:
        """Return the latest progress, or None if it cannot be read.

        Raises AccessRefused if the token is rejected, which is not the attempt's fault.
        """
        try:
            async with self._http.stream("GET", "/progress") as answer:
                if answer.status_code in (401, 403):
                    raise AccessRefused(f"{answer.url}: HTTP {answer.status_code}")
                if answer.status_code != 200:
                    return None
                body = b""
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_PROGRESS_BYTES:
                        log.warning("progress of more than %d bytes refused", MAX_PROGRESS_BYTES)
                        return None
        except httpx.HTTPError as error:
            log.debug("progress at %s: %r", self._http.base_url, error)
            return None
        try:
            return Progress.model_validate_json(body)
        except ValidationError as error:
            log.warning("progress at %s is not readable: %s", self._http.base_url, error)
            return None

    async def dump_stacks(self) -> None:
        """Have all processes dump their stacks to the log folder: best effort, before a stop."""
        try:
            await self._http.post("/stacks")
        except httpx.HTTPError as error:
            log.warning("stack dump not possible: %r", error)
