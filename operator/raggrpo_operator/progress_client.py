"""Client of an attempt's progress server."""

import logging
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from raggrpo_api.fields.text import one_line
from raggrpo_api.limits import MAX_PROGRESS_BYTES
from raggrpo_api.trainer.progress import Progress

from .errors import OperatorError, Unreachable
from .http_api import HttpApi

Model = TypeVar("Model", bound=BaseModel)
log = logging.getLogger(__name__)


async def read_progress(http: HttpApi, model: type[Model]) -> Model | None:
    """Return the latest progress of a server, or None if it cannot be read.

    Raises AccessDenied if the token is rejected.
    """
    try:
        response = await http.call(
            "GET",
            "/progress",
            seconds=http.limits.progress_seconds,
            max_bytes=MAX_PROGRESS_BYTES,
        )
    except Unreachable as error:
        log.debug("progress: %s", error)
        return None
    if response.status != 200:
        return None
    try:
        return model.model_validate_json(response.body)
    except ValidationError as error:
        fields = [one_line(".".join(map(str, each["loc"])), 64) for each in error.errors()[:3]]
        log.warning("progress from %s has invalid fields: %s", http.address, fields)
        return None


class ProgressClient:
    """Client of the progress server of one Ray cluster."""

    def __init__(self, http: HttpApi) -> None:
        self._http = http

    async def read(self) -> Progress | None:
        """Return the latest progress, or None if it cannot be read.

        Raises AccessDenied if the token is rejected.
        """
        return await read_progress(self._http, Progress)

    async def dump_stacks(self) -> None:
        """Make all processes write their stack traces to the log folder; log a failure."""
        try:
            await self._http.call("POST", "/stacks", seconds=self._http.limits.progress_seconds)
        except OperatorError as error:
            log.warning("stack dump failed: %s", error)
