"""Limits of responses of servers that others run: size, duration and progress.

Imports only the standard library.
"""

import time

MAX_BODY_BYTES = 16 * 2**20
"""Size of a response that is not the content of a file: a description, a listing or an error."""
MAX_BODY_SECONDS = 120.0
"""Duration of such a response."""

MAX_HEAD_BYTES = 2**20
"""Size of the head of a response: interim responses, status and headers."""
MAX_HEAD_SECONDS = 60.0
"""Time to wait for a head."""
MIN_PROGRESS_BYTES = 2**18
"""Bytes of a body that a server sends in each PROGRESS_SECONDS that its client waits for them."""
PROGRESS_SECONDS = 60.0
MIN_CHUNK_BYTES = 64
"""Mean size of the chunks of a body, after its first MIN_PROGRESS_BYTES; each takes CPU time."""

UNEXPECTED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of a library that parses values of another type or range."""


class UnsuitableBody(Exception):
    """A response is too large or invalid, or takes too long. The message has problem and remedy."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient
        """Whether the same request may succeed later."""


class BodyLimit:
    """Limits the bytes and the time of a response."""

    def __init__(self, server: str, limit: int, seconds: float) -> None:
        self._server, self._limit, self._size = server, limit, 0
        self._seconds, self._deadline = seconds, time.monotonic() + seconds

    def count(self, chunk: bytes) -> None:
        """Count a chunk. Raises UnsuitableBody if the response is too large or takes too long."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise UnsuitableBody(
                f"{self._server} sent a response of more than {self._limit:,} bytes, which is not "
                "the content of a file; check the address of the server",
            )
        if time.monotonic() > self._deadline:
            raise UnsuitableBody(
                f"{self._server} did not complete a response within {self._seconds:.0f} s; start "
                "again later",
                is_transient=True,
            )


class Reception:
    """Limits the head of each response of a connection, and requires progress of its body.

    The methods raise UnsuitableBody.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self.start_head()

    def start_head(self) -> None:
        """Expect the head of a response from now on."""
        self._is_head = True
        self._bytes, self._waited = 0, 0.0
        self._body_bytes, self._chunks = 0, 0

    def start_body(self) -> None:
        """Expect the body of the response."""
        self._is_head = False
        self._bytes, self._waited = 0, 0.0

    def add_read(self, size: int, seconds: float) -> None:
        """Count a read that returned `size` bytes after `seconds` of waiting for them."""
        self._bytes += size
        self._waited += seconds
        if self._is_head:
            self._check_head()
            return
        self._body_bytes += size
        if self._waited < PROGRESS_SECONDS:
            return
        if self._bytes < MIN_PROGRESS_BYTES:
            raise UnsuitableBody(
                f"{self._server} sent only {self._bytes:,} bytes of a response in "
                f"{self._waited:.0f} s, minimum {MIN_PROGRESS_BYTES:,}; start again later",
                is_transient=True,
            )
        self._bytes, self._waited = 0, 0.0

    def add_chunk(self, number: int = 1) -> None:
        """Count chunks of a body; those of a head have no minimum size."""
        self._chunks += 0 if self._is_head else number
        if self._chunks * MIN_CHUNK_BYTES > self._body_bytes + MIN_PROGRESS_BYTES:
            raise UnsuitableBody(
                f"{self._server} sent a response in chunks of less than {MIN_CHUNK_BYTES} bytes; "
                "configure the server or mirror to send larger ones"
            )

    def _check_head(self) -> None:
        if self._bytes > MAX_HEAD_BYTES:
            raise UnsuitableBody(
                f"{self._server} sent more than {MAX_HEAD_BYTES:,} bytes before the body of a "
                "response; check the address of the server"
            )
        if self._waited > MAX_HEAD_SECONDS:
            raise UnsuitableBody(
                f"{self._server} did not complete the headers of a response within "
                f"{MAX_HEAD_SECONDS:.0f} s; start again later",
                is_transient=True,
            )


def unsuitable_body(error: BaseException | None) -> UnsuitableBody | None:
    """Return the UnsuitableBody that caused an error of a client, or None."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, UnsuitableBody):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
