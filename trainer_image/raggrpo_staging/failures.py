"""`StagingFailed`: why files cannot be downloaded or uploaded."""

import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

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


class RangeIgnored(Exception):
    """The server returned the whole file instead of the requested range."""


def detail(error: BaseException) -> str:
    """Return the error of a library as one line for a message."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_DETAIL]


def connection_failure(server: str, error: BaseException) -> StagingFailed:
    """Return the failure of a connection to a server."""
    if any(_is_certificate_error(each) for each in causes(error)):
        return StagingFailed(
            StagingReason.TLS_FAILURE,
            f"the certificate of {server} is not trusted; specify its authority in spec.caBundle",
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


@contextmanager
def translate_disk_errors(place: object) -> Iterator[None]:
    """Raise StagingFailed for an OSError of the file system at a place."""
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
            f"{place} cannot be written to ({error.strerror or error}); specify a writable folder",
        ) from error


def _is_certificate_error(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY" in str(error)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that caused it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
