"""A client of an OCI registry: that of ORAS with timeouts, and with failures as StagingFailed.

It reads credentials from `config.json` in DOCKER_CONFIG or `~/.docker`. As with Docker, registries
at loopback addresses that have no TLS are accessed over HTTP.
"""

import inspect
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
from .web import check_status, limit_session, translated

UPLOAD_BYTES = 64 * 2**20
"""Bytes per request of an upload."""
_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")
_send_request = inspect.unwrap(Registry.do_request)
"""Without the retries of ORAS, which ignore `Retry-After`."""


def _probe(registry: str) -> tuple[str, requests.Response]:
    """Return the scheme of a registry, and its response."""
    try:
        return "https", _get("https", registry)
    except requests.RequestException as error:
        if not _LOOPBACK.fullmatch(registry) or is_certificate_failure(error):
            raise
    return "http", _get("http", registry)


def _get(scheme: str, registry: str) -> requests.Response:
    with requests.Session() as session:
        limit_session(session, scheme)
        return session.get(f"{scheme}://{registry}/v2/")


class RegistryClient(Registry):  # type: ignore[misc]
    """Requests for one image. Methods raise StagingFailed."""

    def __init__(self, source: ImageSource) -> None:
        self._source = source
        self.on_sent: Callable[[int], object] = lambda _: None
        """Called with the size of each uploaded part of a blob."""
        version = f"@{source.digest}" if source.digest else f":{source.tag or LATEST}"
        self.container = Container(f"{source.registry}/{source.name}{version}")
        with translated(source.registry):
            scheme, probe = _probe(source.registry)
        challenge = probe.headers.get("Www-Authenticate", "") if probe.status_code == 401 else ""
        backend = "basic" if challenge.lower().startswith("basic") else "token"
        super().__init__(insecure=scheme == "http", auth_backend=backend)
        limit_session(self.session, scheme)
        folder = os.environ.get("DOCKER_CONFIG")
        configs = [str(Path(folder) / "config.json")] if folder else []
        self.auth.load_configs(self.container, configs=configs)
        if backend == "basic" and not self._has_credentials:
            raise self._denied()

    def do_request(self, url: str, method: str = "GET", **options: Any) -> requests.Response:
        """Return the response to a request. That to HEAD may have an error status."""
        try:
            response: requests.Response = _send_request(self, url, method, **options)
            if response.status_code == 401 and getattr(self.auth, "token", None):
                self.auth.token = None  # it has expired, or does not allow this method
                response = _send_request(self, url, method, **options)
        except ValueError as error:  # ORAS has no token, and no error for it
            if isinstance(error, requests.RequestException):
                raise
            raise self._denied() from error
        if method != "HEAD":
            self._check(response)
        if method == "PATCH":
            self.on_sent(len(options.get("data", b"")))
        return response

    def _check(self, response: requests.Response) -> None:
        if response.status_code in (401, 403):
            raise self._denied()
        if response.status_code == 404 and "MANIFEST_UNKNOWN" in response.text:
            raise StagingFailed(
                StagingReason.UNKNOWN_REVISION,
                f"{self._source.registry}/{self._source.name} has no image "
                f"{self._source.digest or self._source.tag or LATEST}; correct the tag or digest",
            )
        check_status(response, str(self._source), self._source.registry, "oci")

    @property
    def _has_credentials(self) -> bool:
        return bool(getattr(self.auth, "_basic_auth", ""))

    def _denied(self) -> StagingFailed:
        remedy = TOKEN_REMEDY["oci"]
        if self._has_credentials:
            text = f"{self._source.registry} denied access to {self._source}; {remedy}"
            return StagingFailed(StagingReason.ACCESS_DENIED, text)
        text = f"{self._source} needs credentials; {remedy}"
        return StagingFailed(StagingReason.TOKEN_MISSING, text)
