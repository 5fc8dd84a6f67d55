"""Diagnose failed calls: cause, detail, and whether a retry may succeed. Does no I/O."""

import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from raggrpo_api.fields.url_host import url_host
from raggrpo_api.link_local import is_link_local
from raggrpo_api.secrets.redaction import display_path, display_url
from raggrpo_trainer.call_failures import FailureCause

from .pool import HttpResponse

TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which a retry may succeed."""

DOWN_STATUSES: Final = frozenset({502, 503, 504})
"""Statuses with which a load balancer reports that the service is down."""

UNREACHABLE: Final = (
    FailureCause.CONNECTION_REFUSED,
    FailureCause.CONNECTION_LOST,
    FailureCause.DNS_FAILURE,
)
"""Causes of calls without a response."""

UNKNOWN_AUTHORITY_CODES: Final = frozenset({18, 19, 20, 21})
"""Results of OpenSSL's X509_verify_cert for certificates of unknown authorities."""
CA_REMEDY: Final = (
    "if a private authority signed the certificate, specify the authority's certificate in "
    "spec.caBundle"
)


def is_transient_status(status: int) -> bool:
    """Return whether a retry after this status may succeed."""
    return status >= 500 or status in TRANSIENT_STATUSES


def redirect_target(response: HttpResponse, url: str) -> str:
    """Return the target of a redirect from `url`, or "" if there is none that `url` may become.

    The target contains no secrets and no query; on the same server, it is only the path. A target
    that is not HTTP, or is a link-local address or metadata service, must not be recommended.
    """
    if not 300 <= response.status < 400 or not response.location:
        return ""
    try:
        source = urlsplit(url)
        target = urlsplit(urljoin(url, response.location))
        host, port = target.hostname or "", target.port
    except ValueError:
        return ""
    if (target.scheme, target.netloc) == (source.scheme, source.netloc):
        return display_path(target.path, host)
    if target.scheme not in ("http", "https") or not host or is_link_local(host):
        return ""
    return display_url(
        f"{target.scheme}://{url_host(host)}{f':{port}' if port else ''}{target.path}"
    )


def is_html(response: HttpResponse) -> bool:
    """Return whether a response is an HTML page, as sent by load balancers during maintenance."""
    return "html" in response.content_type.lower() or response.body.lstrip()[:1] == b"<"


def retry_after_seconds(response: HttpResponse) -> float:
    """Return the delay that `Retry-After` requests (RFC 9110, section 10.2.3), or 0."""
    if not is_transient_status(response.status):
        return 0.0
    value = response.retry_after.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def cause_and_detail(error: Exception) -> tuple[FailureCause, str]:
    """Return the cause and one line of detail, without the URL, whose query may contain a key."""
    cause, detail = FailureCause.CONNECTION_LOST, str(error)
    match error:
        case aiohttp.ClientConnectorDNSError(os_error=fault):
            cause, detail = FailureCause.DNS_FAILURE, str(fault)
        case (
            aiohttp.ClientSSLError(os_error=ConnectionError() | ssl.SSLEOFError() as fault)
            | aiohttp.ClientConnectorError(os_error=ConnectionResetError() as fault)
        ):
            detail = (
                f"TLS handshake interrupted ({fault}); check that the load balancer has a backend"
            )
        case aiohttp.ClientConnectorCertificateError(certificate_error=fault):
            cause, detail = FailureCause.TLS_FAILURE, str(fault)
            if getattr(fault, "verify_code", 0) in UNKNOWN_AUTHORITY_CODES:
                detail += f"; {CA_REMEDY}"
        case aiohttp.ClientSSLError(os_error=fault):
            cause, detail = FailureCause.TLS_FAILURE, str(fault)
        case aiohttp.ClientConnectorError(os_error=fault):
            cause, detail = FailureCause.CONNECTION_REFUSED, str(fault)
        case aiohttp.ClientOSError(__cause__=OSError() as fault):
            detail = str(fault)
        case aiohttp.ClientError(__cause__=ContentEncodingError(message=detail)):
            cause = FailureCause.BAD_JSON
        case aiohttp.ClientError(__cause__=HttpProcessingError(message=detail)):
            pass
        case aiohttp.ClientResponseError(message=detail):
            pass
        case aiohttp.ServerDisconnectedError():
            detail = "the server closed the connection without a response"
        case aiohttp.InvalidURL():
            detail = "invalid URL"
    return cause, " ".join(detail.split()) or type(error).__name__
