"""fsspec's file systems for S3 and Google Cloud Storage, with limits on responses and listings.

A listing calls `check_listed` with the number of its entries so far, where an empty page counts as
one, before the entries are retained; an error that it raises ends the listing. Nothing is cached.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

from gcsfs.core import GCSFileSystem
from s3fs import S3FileSystem

from raggrpo_api.limits import MAX_LISTING_SECONDS

from .responses import LimitedResponse, LimitedS3Session

# gcsfs logs the errors that it raises, with tracebacks and all text of the server.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)


class LimitedS3(S3FileSystem):  # type: ignore[misc]
    """Objects in S3."""

    cachable = False

    def __init__(self, check_listed: Callable[[int], object], **options: Any) -> None:
        super().__init__(
            config_kwargs={"http_session_cls": LimitedS3Session},
            use_listings_cache=False,
            **options,
        )
        self._check_listed = check_listed

    @property
    def server(self) -> str:
        """Return the host and port of the server, or "" before the client is set up."""
        return urlsplit(self._s3.meta.endpoint_url).netloc if self._s3 else ""

    async def _list_pages(self, method: str, **options: Any) -> AsyncIterator[Any]:
        listed, end = 0, time.monotonic() + MAX_LISTING_SECONDS
        async for page in super()._list_pages(method, **options):
            listed += _entries(page, "Contents", "CommonPrefixes")
            self._check_listed(listed)
            _check_time(end)
            yield page


class LimitedGcs(GCSFileSystem):  # type: ignore[misc]
    """Objects in Google Cloud Storage over HTTP; the client for gRPC reads no proxies."""

    cachable = False

    def __init__(self, check_listed: Callable[[int], object]) -> None:
        super().__init__(
            token="anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None,
            session_kwargs={"trust_env": True, "response_class": LimitedResponse},
            use_listings_cache=False,
        )
        self._check_listed = check_listed
        self._listed, self._end = 0, 0.0

    @property
    def server(self) -> str:
        """Return the host and port of the server."""
        return urlsplit(self._location).netloc

    async def _call_list_objects(self, *arguments: Any, **options: Any) -> Any:
        if not options.get("pageToken"):
            self._listed, self._end = 0, time.monotonic() + MAX_LISTING_SECONDS
        page = await super()._call_list_objects(*arguments, **options)
        self._listed += _entries(page, "items", "prefixes")
        self._check_listed(self._listed)
        _check_time(self._end)
        return page


def _check_time(end: float) -> None:
    """Raise ConnectionError after a listing's time; fsspec drops the text of a TimeoutError."""
    if time.monotonic() > end:
        raise ConnectionError(f"the listing takes more than {MAX_LISTING_SECONDS:g} s")


def _entries(page: Any, *fields: str) -> int:
    return max(1, sum(len(page.get(name, ())) for name in fields))
