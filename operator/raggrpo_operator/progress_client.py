"""Reads an attempt's GET /progress, with limits on time and size."""

import logging

import aiohttp
from pydantic import ValidationError

from raggrpo_api.names import MAX_PROGRESS_BYTES
from raggrpo_api.progress import Progress

from .errors import AccessRefused
from .http_api import HttpApi

TIMEOUT_SECONDS = 3.0
log = logging.getLogger(__name__)


class ProgressClient:
    """The progress server of one Ray cluster."""

    def __init__(self, http: HttpApi) -> None:
        self._http = http

    async def read(self) -> Progress | None:
        """Return the latest progress, or None if it cannot be read.

        Raises AccessRefused if the token is rejected.
        """
        try:
            async with self._http.call("GET", "/progress", seconds=TIMEOUT_SECONDS) as answer:
                if answer.status in (401, 403):
                    raise AccessRefused(f"{answer.url}: HTTP {answer.status}")
                if answer.status != 200:
                    return None
                body = b""
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_PROGRESS_BYTES:
                        log.warning("progress of more than %d bytes refused", MAX_PROGRESS_BYTES)
                        return None
        except (aiohttp.ClientError, OSError) as error:
            log.debug("progress at %s: %r", self._http.address, error)
            return None
        try:
            return Progress.model_validate_json(body)
        except ValidationError as error:
            log.warning("progress at %s is not readable: %s", self._http.address, error)
            return None

    async def dump_stacks(self) -> None:
        """Have all processes dump their stacks to the log folder before a stop; best effort."""
        try:
            async with self._http.call("POST", "/stacks", seconds=TIMEOUT_SECONDS) as answer:
                await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            log.warning("stack dump not possible: %s: %s", type(error).__name__, error)
