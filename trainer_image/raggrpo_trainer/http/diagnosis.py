"""What went wrong with a call, as people are told, and whether it may pass. Does no I/O."""

import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from raggrpo_trainer.call_failures import CallFailed, FailureCause

from .pool import Answer

PASSING: Final = frozenset({408, 425, 429})
"""Statuses below 500 of a request that may be answered later."""
CODES: Final = ("code", "status", "status_code", "statusCode")
ERRORS: Final = ("error", "errors")
WORDS: Final = ("message", "msg", "detail", "error", "errors", "reason", "description", "type")
"""Where services say what went wrong, best first."""
MAX_ERROR_DEPTH: Final = 3


def is_transient_status(status: int) -> bool:
    """Return whether a request with this status may be answered later."""
    return status >= 500 or status in PASSING


def redirect_target(answer: Answer, url: str) -> str:
    """Return where a redirect of `url` leads, empty if nowhere.

    Without query and credentials; of the same server the path alone.
    """
    if not 300 <= answer.status < 400 or not answer.location:
        return ""
    try:
        asked, goal = urlsplit(url), urlsplit(urljoin(url, answer.location))
        host, port = goal.hostname or "", goal.port
    except ValueError:
        return ""
    if (goal.scheme, goal.netloc) == (asked.scheme, asked.netloc):
        return goal.path
    at = f"[{host}]" if ":" in host else host
    return f"{goal.scheme}://{at}{f':{port}' if port else ''}{goal.path}"


def is_html(answer: Answer) -> bool:
    """Return whether an answer is an HTML page, as balancers show during maintenance."""
    return "html" in answer.content_type.lower() or answer.body.lstrip()[:1] == b"<"


def retry_after_seconds(answer: Answer) -> float:
    """Return the seconds that `Retry-After` (RFC 9110, section 10.2.3) asks to wait, else 0."""
    if not is_transient_status(answer.status):
        return 0.0
    told = answer.retry_after.strip()
    if told.isascii() and told.isdigit():
        return float(told[:9])
    try:
        when = parsedate_to_datetime(told)
    except ValueError:
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def reported_error(value: Any) -> CallFailed | None:
    """Return what an answer of a good status says went wrong, None if it says nothing."""
    if not isinstance(value, dict):
        return None
    codes = [_code(value.get(name)) for name in CODES]
    code = next((each for each in codes if each >= 400), 0)
    if code or value.get("success") is False or has_error(value):
        return service_error(value, code)
    return None


def has_error(value: Any) -> bool:
    """Return whether a value names an error, whatever else it holds."""
    if not isinstance(value, dict):
        return False
    named = [value.get(name) for name in ERRORS]
    # Some services always send the object, with a code of 0 and no message.
    return any(any(each.values()) if isinstance(each, dict) else each for each in named)


def service_error(said: Any, code: int = 0) -> CallFailed:
    """Return the failure of a call that a service tells of in its answer."""
    words = " ".join(_words(said, MAX_ERROR_DEPTH).split()) or "no reason is given"
    told = f"the service answers with an error: {f'{code} ' if code else ''}{words}"
    transient = code < 600 and is_transient_status(code)
    return CallFailed(FailureCause.SERVICE_ERROR, told, transient=transient)


def _code(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:9])
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _words(said: Any, levels: int) -> str:
    """Return the words of an error: a text, or that of the first usual name inside."""
    if isinstance(said, str):
        return said
    if isinstance(said, list) and said and levels:
        return _words(said[0], levels - 1)
    if isinstance(said, dict) and levels:
        inside = (_words(said.get(name), levels - 1) for name in WORDS)
        return next((words for words in inside if words), "")
    return ""


def cause_and_detail(error: Exception) -> tuple[FailureCause, str]:
    """Return the cause and one line of detail, without the URL: its query may hold a key."""
    cause, why = FailureCause.CONNECTION_LOST, str(error)
    match error:
        case aiohttp.ClientConnectorDNSError(os_error=fault):
            cause, why = FailureCause.DNS_FAILURE, str(fault)
        case (
            aiohttp.ClientSSLError(os_error=ConnectionError() | ssl.SSLEOFError() as fault)
            | aiohttp.ClientConnectorError(os_error=ConnectionResetError() as fault)
        ):
            why = f"the TLS handshake was cut off ({fault}), as by a balancer without a server"
        case aiohttp.ClientSSLError(os_error=fault):
            cause, why = FailureCause.TLS_FAILURE, str(fault)
        case aiohttp.ClientConnectorError(os_error=fault):
            cause, why = FailureCause.CONNECTION_REFUSED, str(fault)
        case aiohttp.ClientOSError(__cause__=OSError() as fault):
            why = str(fault)
        case aiohttp.ClientError(__cause__=ContentEncodingError(message=why)):
            cause = FailureCause.BAD_JSON
        case aiohttp.ClientError(__cause__=HttpProcessingError(message=why)):
            pass
        case aiohttp.ClientResponseError(message=why):
            pass
        case aiohttp.ServerDisconnectedError():
            why = "Server disconnected without sending a response."
        case aiohttp.InvalidURL():
            why = "the URL is not valid"
    return cause, " ".join(why.split()) or type(error).__name__
