"""A client of an OCI registry: that of ORAS with timeouts, and with failures as StagingFailed.

It reads credentials from `config.json` in DOCKER_CONFIG or `~/.docker`. As with Docker, registries
at loopback addresses that have no TLS are accessed over HTTP.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from oras.container import Container
from oras.provider import Registry

from raggrpo_api.fields.source import LATEST, ImageSource
from raggrpo_api.trainer.staging import StagingReason

from .failures import TOKEN_REMEDY, StagingFailed, is_certificate_failure
from .redirects import origin, other_server_denied, require_redirect
from .registry_login import authorization
from .web import check_status, limit_session, translated

UPLOAD_BYTES = 64 * 2**20
"""Bytes per request of an upload."""
_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")


def _scheme(registry: str) -> str:
    """Return the scheme of the URLs of a registry."""
    if not _LOOPBACK.fullmatch(registry):
        return "https"
    try:
        with requests.Session() as session:
            limit_session(session, "https")
            session.get(f"https://{registry}/v2/")
    except requests.RequestException as error:
        if is_certificate_failure(error):
            raise
        return "http"
    return "https"


class RegistryClient(Registry):  # type: ignore[misc]
    """Requests for one image. Methods raise StagingFailed."""

    def __init__(self, source: ImageSource) -> None:
        self._source = source
        self.on_sent: Callable[[int], object] = lambda _: None
        """Called with the size of each uploaded part of a blob."""
        version = f"@{source.digest}" if source.digest else f":{source.tag or LATEST}"
        self.container = Container(f"{source.registry}/{source.name}{version}")
        with translated(source.registry):
            scheme = _scheme(source.registry)
        super().__init__(insecure=scheme == "http")
        limit_session(self.session, "https", scheme)
        folder = os.environ.get("DOCKER_CONFIG")
        configs = [str(Path(folder) / "config.json")] if folder else []
        self.auth.load_configs(self.container, configs=configs)
        self._credentials = str(getattr(self.auth, "_basic_auth", ""))
        self._authorization = ""

    def do_request(self, url: str, method: str = "GET", **options: Any) -> requests.Response:
        """Return the response to a request. That to HEAD may have an error status.

        Only the registry itself receives credentials, and only its own challenge is answered.
        """
        response = self._send(url, method, **options)
        if response.status_code in (401, 403) and self._is_own(response.url):
            self._authorization = authorization(self.session, response, self._credentials) or ""
            if not self._authorization:
                raise self._denied()
            response = self._send(url, method, **options)
        if method != "HEAD":
            self._check(response)
        if method == "PATCH":
            self.on_sent(len(options.get("data", b"")))
        return response

    def _send(self, url: str, method: str, **options: Any) -> requests.Response:
        headers = dict(options.pop("headers", None) or {})
        if not self._is_own(url):  # the registry's response names it for an upload
            require_redirect(f"{self.prefix}://{self._source.registry}", url)
        elif self._authorization:
            headers["Authorization"] = self._authorization
        response: requests.Response = self.session.request(method, url, headers=headers, **options)
        return response

    def _is_own(self, url: str) -> bool:
        """Return whether a URL is the registry's, not that of a storage to which it refers."""
        return origin(url) == origin(f"{self.prefix}://{self._source.registry}")

    def _check(self, response: requests.Response) -> None:
        if response.status_code in (401, 403):
            if self._is_own(response.url):
                raise self._denied()
            raise other_server_denied(
                response.url, self._source.registry, self._source, response.status_code
            )
        if response.status_code == 404 and "MANIFEST_UNKNOWN" in response.text:
            raise StagingFailed(
                StagingReason.UNKNOWN_REVISION,
                f"{self._source.registry}/{self._source.name} has no image "
                f"{self._source.digest or self._source.tag or LATEST}; correct the tag or digest",
            )
        check_status(response, str(self._source), self._source.registry, "oci")

    def _denied(self) -> StagingFailed:
        remedy = TOKEN_REMEDY["oci"]
        if self._credentials:
            text = f"{self._source.registry} denied access to {self._source}; {remedy}"
            return StagingFailed(StagingReason.ACCESS_DENIED, text)
        text = f"{self._source} needs credentials; {remedy}"
        return StagingFailed(StagingReason.TOKEN_MISSING, text)
