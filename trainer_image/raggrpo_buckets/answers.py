"""Errors of clients at responses that the API of an object store does not allow."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raggrpo_api.fields.text import one_line
from raggrpo_api.foreign_bodies import UNEXPECTED, UnsuitableBody

MAX_DETAIL = 80
"""Characters of an error of a client."""
REMEDY = "check that the endpoint is an S3-compatible or Google Cloud Storage server"
_REJECTIONS = ("Bad Request: ", "Bucket is requester pays")
"""Starts of a ValueError of gcsfs at a valid response with a status of 400 or more."""


@contextmanager
def valid_answers(file_system: Any, path: str) -> Iterator[None]:
    """Raise UnsuitableBody if a client cannot use the response to a request for `path`.

    Raises OSError if the server rejects the request, where gcsfs raises a ValueError. `file_system`
    is LimitedS3, LimitedGcs or a local file system, whose errors are not changed.
    """
    try:
        yield
    except UNEXPECTED as error:
        server = getattr(file_system, "server", "")
        if not server:
            raise
        if isinstance(error, ValueError) and str(error).startswith(_REJECTIONS):
            raise OSError(str(error)) from error
        detail = one_line(f"{type(error).__name__}: {error}", MAX_DETAIL)
        raise UnsuitableBody(
            f"{server} sent an invalid response to a request for {path} ({detail}); {REMEDY}"
        ) from error
