"""The log of aiohttp's server: malformed requests are no errors of this process."""

import logging
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from raggrpo_api.fields.text import one_line

MAX_DETAIL_CHARACTERS: Final = 200
MALFORMED: Final = (HttpProcessingError, web.RequestPayloadError)
"""Errors of requests that are not HTTP, or whose body does not follow their headers."""
log = logging.getLogger(__name__)


def _is_not_malformed(record: logging.LogRecord) -> bool:
    """Return whether a record is logged as it is; log a malformed request as one debug line."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, MALFORMED):
        return True
    log.debug("malformed request: %s", one_line(str(error), MAX_DETAIL_CHARACTERS))
    return False


server_log = logging.getLogger(f"{__name__}.server")
server_log.addFilter(_is_not_malformed)
