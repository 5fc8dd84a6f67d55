"""A file on a web server. requests reads proxies, netrc and REQUESTS_CA_BUNDLE."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.sessions import SessionRedirectMixin
from requests.utils import requote_uri

from raggrpo_api.fields.source import HttpsSource
from raggrpo_api.foreign_bodies import UNEXPECTED, UnsuitableBody
from raggrpo_api.trainer.staging import SourceRole, StagingReason

from .bodies import limited, require_plain
from .failures import (
    TOKEN_REMEDY,
    StagingFailed,
    body_failure,
    connection_failure,
    status_failure,
    unexpected_failure,
)
from .ranges import range_headers, require_range
from .redirects import answering_server, is_other_server, other_server_denied, require_redirect
from .remote import Checksum, Remote, RemoteFile, Snapshot
from .retries import retry_after
from .selection import single_file
from .watched_connections import POOLS

CHUNK_BYTES = 2**20
MAX_CHALLENGE = 4096
"""Characters of `WWW-Authenticate`, which ORAS parses in quadratic time."""
MAX_DIGITS = 18
"""Maximum digits of a size in a header; a larger size is ignored."""
TIMEOUT_SECONDS = (10.0, 30.0)
"""To connect, and between received bytes."""


class _LimitedAdapter(HTTPAdapter):  # type: ignore[misc]
    """Connections with a timeout, and with limits of bodies that are not those of files."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = POOLS
        return manager

    def send(
        self, request: requests.PreparedRequest, stream: bool = False, **options: Any
    ) -> requests.Response:
        """Return a response; its body is read, unless it is that of a file."""
        response = super().send(request, stream=True, **options | {"timeout": TIMEOUT_SECONDS})
        server = urlsplit(request.url).hostname or ""
        if target := SessionRedirectMixin().get_redirect_target(response):
            require_redirect(request.url, requote_uri(target))
        if len(response.headers.get("WWW-Authenticate", "")) > MAX_CHALLENGE:
            raise StagingFailed(
                StagingReason.UNSUITABLE_CONTENT,
                f"{server} sent a header WWW-Authenticate of more than {MAX_CHALLENGE:,} "
                "characters; check the address of the server",
            )
        if not stream or response.status_code not in (200, 206):
            if request.method != "HEAD":
                require_plain(response.headers, server)
            chunks = response.raw.stream(CHUNK_BYTES, decode_content=False)
            response._content = b"".join(limited(chunks, server))
            response._content_consumed = True
            response.encoding = "utf-8"  # a charset such as punycode takes quadratic time
        return response


def limit_session(session: requests.Session, *schemes: str) -> None:
    """Limit the responses that a session reads, and its URLs to these schemes."""
    session.adapters.clear()
    for scheme in schemes:
        session.mount(f"{scheme}://", _LimitedAdapter())


class WebRemote(Remote):
    """One file."""

    def __init__(self, source: HttpsSource, role: SourceRole) -> None:
        self._source, self._role = source, role
        self._local = threading.local()

    def snapshot(self, _revision: str) -> Snapshot:
        """Return the file; its revision is the checksum, or the entity tag."""
        source = self._source
        with translated(source.host), self._request("HEAD", {}) as response:
            check_status(response, str(source), source.host, "https")
            headers = response.headers
        has_ranges = headers.get("Accept-Ranges", "").lower() == "bytes"
        length = headers.get("Content-Length", "")
        is_size = length.isdecimal() and len(length) <= MAX_DIGITS
        size = int(length) if has_ranges and is_size else None
        name = single_file(source.path.rpartition("/")[2], self._role, source)
        checksum = Checksum("sha256", source.sha256) if source.sha256 else None
        revision = f"sha256:{source.sha256}" if source.sha256 else _tag(headers, source)
        return Snapshot(
            revision,
            (RemoteFile(name, source.url, size, checksum),),
            is_file=True,
            is_immutable=bool(source.sha256),
        )

    def chunks(self, file: RemoteFile, start: int, stop: int | None) -> Iterator[bytes]:
        """Yield a range of the file."""
        headers = range_headers(start, stop)
        with translated(self._source.host), self._request("GET", headers) as response:
            check_status(response, str(self._source), self._source.host, "https")
            yield from ranged_chunks(response, file, start, stop)

    def _request(self, method: str, headers: dict[str, str]) -> requests.Response:
        """Send a request; each thread has its own session, because sessions are not thread-safe."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            limit_session(self._local.session, "https")
        session: requests.Session = self._local.session
        return session.request(
            method,
            self._source.url,
            headers={"Accept-Encoding": "identity", **headers},
            stream=True,
            allow_redirects=True,
        )


def _tag(headers: Mapping[str, str], source: HttpsSource) -> str:
    """Return the entity tag, or the time of the last change. Raises StagingFailed."""
    if tag := headers.get("ETag", "").strip('"') or headers.get("Last-Modified"):
        return tag
    raise StagingFailed(
        StagingReason.UNSUITABLE_CONTENT,
        f"{source.host} reports neither ETag nor Last-Modified, so that a change of {source} would "
        "not be noticed; append #sha256=DIGEST",
    )


def ranged_chunks(
    response: requests.Response, file: RemoteFile, start: int, stop: int | None
) -> Iterator[bytes]:
    """Yield the body of a response to a request for a range. Raises as `require_range`."""
    require_plain(response.headers, urlsplit(response.url).hostname or "")
    require_range(response.status_code, response.headers, file, start, stop)
    yield from response.iter_content(CHUNK_BYTES)


@contextmanager
def translated(server: str) -> Iterator[None]:
    """Raise StagingFailed for errors of a connection."""
    try:
        yield
    except UnsuitableBody as error:
        raise body_failure(error) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise connection_failure(answering_server(error, server), error) from error
    except UNEXPECTED as error:
        raise unexpected_failure(server, "its files", error) from error


def check_status(response: requests.Response, source: str, server: str, scheme: str) -> None:
    """Raise StagingFailed for a status that is an error."""
    status = response.status_code
    if status < 400:
        return
    if status in (404, 410):
        raise StagingFailed(StagingReason.NOT_FOUND, f"{source} does not exist; correct it")
    if status in (401, 403) and is_other_server(response.url, server):
        raise other_server_denied(response.url, server, source, status)
    if status == 401:
        raise StagingFailed(
            StagingReason.TOKEN_MISSING, f"{source} needs credentials; {TOKEN_REMEDY[scheme]}"
        )
    if status == 403:
        raise StagingFailed(
            StagingReason.ACCESS_DENIED,
            f"{server} denied access to {source}; {TOKEN_REMEDY[scheme]}",
        )
    raise status_failure(server, status, retry_after(response.headers))
