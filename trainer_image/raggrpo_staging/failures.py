"""`StagingFailed`: why files cannot be downloaded or uploaded."""

import errno
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from raggrpo_api.fields.text import one_line
from raggrpo_api.file_names import path_below
from raggrpo_api.foreign_bodies import UnsuitableBody
from raggrpo_api.secrets.detection import HIDDEN
from raggrpo_api.secrets.names import is_secret_name
from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.secrets.values import has_known_secret
from raggrpo_api.trainer.staging import TRANSIENT_REASONS, StagingReason

EXIT_FAILED = 3
EXIT_RETRY = 4
"""Exit code if the same request may succeed later."""
MAX_DETAIL = 300
"""Characters of an error of a library in a message."""
TOKEN_REMEDY = {
    "hf": "pass a token of an account with access in HF_TOKEN",
    "s3": "pass AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a service account with access",
    "gs": "pass GOOGLE_APPLICATION_CREDENTIALS, or a service account with access",
    "https": "pass a netrc file in NETRC",
    "oci": "pass the folder of a Docker config.json in DOCKER_CONFIG",
}
"""How to pass credentials, by scheme."""
FOLDER_REMEDY = "specify a writable folder"
MIN_SECRET = 8
"""Minimum length of a credential to hide; a shorter one may be part of a word."""
_QUERY = re.compile(r"[?][^\s()]*=[^\s()]*")
"""Query of a URL, which may be signed."""
_INVALID_REQUESTS = {
    "InvalidSchema", "InvalidURL", "MissingSchema", "TooManyRedirects", "UnsupportedProtocol",
}  # fmt: skip
"""Errors of HTTP clients that a repeated request would raise, too."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StagingFailed(Exception):
    """Files cannot be downloaded or uploaded. The message has problem and remedy."""

    def __init__(
        self, reason: StagingReason, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
        """Seconds after which the server accepts the next request, if it specifies them."""

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.reason in TRANSIENT_REASONS


class Stopped(Exception):
    """Another thread failed, or the process is terminating."""


class RangeIgnored(Exception):
    """The server returned the whole file instead of the requested range."""


def detail(error: BaseException) -> str:
    """Return the error of a library as one line for a message, without credentials."""
    text = one_line(_text(error), 4 * MAX_DETAIL)
    for name, value in os.environ.items():
        if is_secret_name(name) and len(value) >= MIN_SECRET:
            text = text.replace(value, HIDDEN)
    text = _QUERY.sub("", display_url(text))
    words = (HIDDEN if has_known_secret(each) else each for each in text.split())
    return " ".join(words)[:MAX_DETAIL]


def _text(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


def body_failure(error: UnsuitableBody) -> StagingFailed:
    """Return the failure of a server whose response exceeds a limit."""
    reason = StagingReason.UNREACHABLE if error.is_transient else StagingReason.UNSUITABLE_CONTENT
    return StagingFailed(reason, str(error))


def unexpected_failure(server: str, source: str, error: BaseException) -> StagingFailed:
    """Return the failure of a server whose description of a source cannot be parsed."""
    return StagingFailed(
        StagingReason.UNSUITABLE_CONTENT,
        f"{server} describes {source} in an unexpected format ({detail(error)}); check the address "
        "of the server",
    )


def connection_failure(server: str, error: BaseException) -> StagingFailed:
    """Return the failure of a connection to a server."""
    if is_certificate_failure(error):
        return StagingFailed(
            StagingReason.TLS_FAILURE,
            f"the certificate of {server} is not trusted; specify its authority in spec.caBundle",
        )
    if any(type(each).__name__ in _INVALID_REQUESTS for each in causes(error)):
        return StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{server} has an invalid URL, or redirects to one or without end ({detail(error)}); "
            "correct its address",
        )
    return StagingFailed(
        StagingReason.UNREACHABLE,
        f"{server} cannot be reached ({detail(error)}); check its address, the network and "
        "proxy settings",
    )


def status_failure(server: str, status: int, wait: float | None) -> StagingFailed:
    """Return the failure for an HTTP status of a server without further details."""
    if status == 429:
        return StagingFailed(
            StagingReason.RATE_LIMITED,
            f"{server} limits the rate of requests (HTTP 429); start again later",
            wait,
        )
    return StagingFailed(
        StagingReason.UNREACHABLE, f"{server} failed with HTTP {status}; start again later", wait
    )


def own_path(folder: Path, name: str) -> Path:
    """Return the path of a file in a shared folder. Raises StagingFailed if it leads out of it."""
    try:
        return path_below(folder, name)
    except ValueError as error:
        raise StagingFailed(StagingReason.FOLDER_NOT_WRITABLE, f"{error}; remove it") from error


@contextmanager
def translate_disk_errors(place: object, remedy: str = FOLDER_REMEDY) -> Iterator[None]:
    """Raise StagingFailed for an OSError of the file system at a place.

    `remedy` is that of a place that cannot be written to.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StagingFailed(
                StagingReason.DISK_FULL,
                f"{place} is full ({error.strerror}); request more storage or free some",
            ) from error
        raise StagingFailed(
            StagingReason.FOLDER_NOT_WRITABLE,
            f"{place} cannot be written to ({error.strerror or detail(error)}); {remedy}",
        ) from error


def is_certificate_failure(error: BaseException) -> bool:
    """Return whether an error is due to a certificate that is not trusted."""
    return any(
        isinstance(each, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY" in str(each)
        for each in causes(error)
    )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that caused it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
