"""`KubeClient`: the Kubernetes API verbs that the operator uses, with objects as plain dicts.

This is the only module that maps HTTP statuses of the API server to OperatorErrors.
"""

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from raggrpo_api import names
from raggrpo_api.fields.text import one_line
from raggrpo_operator.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    NotFound,
    OperatorError,
    PermanentError,
    QuotaExceeded,
    TransientError,
)

Manifest = dict[str, Any]
TIMEOUT_SECONDS = 30
MAX_MESSAGE = 1024
JSON = "application/json"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
REPLACED_METADATA = ("uid", "resourceVersion", "labels")
"""The API server rejects the change if uid or resourceVersion is another one."""
PAGE_SIZE = 10
"""Objects per page of a list; an object of 1.5 MB of JSON takes 40 MB as Python objects."""
RECURSION_LIMIT = 16_000
"""Python's recursion limit (default 1,000); the API server accepts 10,000 levels of nesting."""
IDENTITY_FIELDS = ("namespace", "name", "uid", "resourceVersion")
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _GONE, _TOO_MANY = 401, 403, 404, 409, 410, 429


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and its name in API paths."""

    api_version: str
    plural: str
    kind: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the API path of an object, or of the list of objects if `name` is "".

        Namespace "" stands for all namespaces.
        """
        prefix = "/apis" if "/" in self.api_version else "/api"
        scope = f"namespaces/{namespace}" if namespace else ""
        parts = (prefix, self.api_version, scope, self.plural, name, subresource)
        return "/".join(part for part in parts if part)


JOBS = Resource(names.API_VERSION, names.PLURAL, names.KIND)
RAY_CLUSTERS = Resource("ray.io/v1", "rayclusters", "RayCluster")
PODS = Resource("v1", "pods", "Pod")
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
SECRETS = Resource("v1", "secrets", "Secret")
SERVICES = Resource("v1", "services", "Service")
CLAIMS = Resource("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DEPLOYMENTS = Resource("apps/v1", "deployments", "Deployment")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
EVENTS = Resource("events.k8s.io/v1", "events", "Event")
NODES = Resource("v1", "nodes", "Node")
LEASES = Resource("coordination.k8s.io/v1", "leases", "Lease")
BY_KIND = {
    (each.api_version, each.kind): each
    for each in (
        JOBS, RAY_CLUSTERS, PODS, CONFIG_MAPS, SECRETS, SERVICES, CLAIMS, DEPLOYMENTS,
        NETWORK_POLICIES, EVENTS, LEASES,
    )
}  # fmt: skip


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Return the `Resource` of an object."""
    return BY_KIND[manifest["apiVersion"], manifest["kind"]]


class KubeClient(Protocol):
    """The API verbs; a failed call raises OperatorError or a subclass."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        """Return the object. Raises NotFound if it does not exist."""
        ...

    async def list_all(self, resource: Resource, namespace: str) -> list[Manifest]:
        """Return all objects; namespace "" stands for all namespaces."""
        ...

    async def list_metadata(self, resource: Resource, namespace: str) -> list[Manifest]:
        """Return all objects, reduced to the IDENTITY_FIELDS of their metadata."""
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the object. Raises AlreadyExists if the name is taken."""
        ...

    async def apply(self, manifest: Manifest) -> Manifest:
        """Apply the manifest (server-side, forced). Raises Conflict if resourceVersion is stale."""
        ...

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace labels and spec of the object. Raises Conflict if uid or resourceVersion differs.

        Unlike `apply`, this removes every field that the manifest does not have.
        """
        ...

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Apply the status in the manifest. Raises Conflict if resourceVersion is stale."""
        ...

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Delete the object. Raises NotFound if it does not exist, Conflict if its uid differs."""
        ...

    async def get_raw(self, path: str) -> Manifest:
        """Return the response to GET on this path, as `kubectl get --raw` does."""
        ...


CallObserver = Callable[[str, int, float], None]
"""Callback after every call, with method, HTTP status (0 without a response) and seconds."""


class ApiServer:
    """`KubeClient` that calls an API server over HTTP."""

    def __init__(self, api: ApiClient, on_call: CallObserver = lambda *_: None) -> None:
        self._api, self._on_call = api, on_call

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        """Return the object."""
        return await self._call("GET", resource.path(namespace, name))

    async def list_all(self, resource: Resource, namespace: str) -> list[Manifest]:
        """Return all objects."""
        return [each async for each in self._items(resource, namespace, JSON)]

    async def list_metadata(self, resource: Resource, namespace: str) -> list[Manifest]:
        """Return all objects, reduced to the IDENTITY_FIELDS of their metadata."""
        return [
            {"metadata": {field: each["metadata"][field] for field in IDENTITY_FIELDS}}
            async for each in self._items(resource, namespace, METADATA_LIST)
        ]

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the object; the API server rejects unknown fields."""
        path = resource_of(manifest).path(manifest["metadata"]["namespace"])
        query = {"fieldManager": names.MANAGER, "fieldValidation": "Strict"}
        return await self._call("POST", path, body=manifest, query=query)

    async def apply(self, manifest: Manifest) -> Manifest:
        """Apply the manifest."""
        return await self._apply(manifest, "")

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace labels and spec of the object with those of the manifest."""
        metadata = manifest["metadata"]
        new = {f"/metadata/{name}": metadata[name] for name in REPLACED_METADATA}
        new["/spec"] = manifest["spec"]
        changes = [{"op": "add", "path": path, "value": value} for path, value in new.items()]
        path = resource_of(manifest).path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": names.MANAGER, "fieldValidation": "Strict"}
        return await self._call("PATCH", path, body=changes, query=query, content=JSON_PATCH)

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Apply the status in the manifest."""
        return await self._apply(manifest, "status")

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid and, in the background, all objects it owns."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        await self._call("DELETE", resource.path(namespace, name), body=body)

    async def get_raw(self, path: str) -> Manifest:
        """Return the response to GET on this path, as `kubectl get --raw` does."""
        return await self._call("GET", path)

    async def _items(
        self, resource: Resource, namespace: str, accept: str
    ) -> AsyncIterator[Manifest]:
        """Yield all objects, page by page."""
        query = {"limit": str(PAGE_SIZE)}
        while True:
            page = await self._call("GET", resource.path(namespace), query=query, accept=accept)
            for each in page["items"] or []:  # items is null if there are no objects
                yield each
            token = page["metadata"].get("continue", "")
            if not token:
                return
            query = {**query, "continue": token}

    async def _apply(self, manifest: Manifest, subresource: str) -> Manifest:
        metadata = manifest["metadata"]
        path = resource_of(manifest).path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": names.MANAGER, "force": "true", "fieldValidation": "Strict"}
        return await self._call("PATCH", path, body=manifest, query=query, content=APPLY)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | list[Manifest] | None = None,
        query: Mapping[str, str] | None = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> Manifest:
        host = self._api.configuration.host
        url = f"{host}{path}?{urlencode(query)}" if query else f"{host}{path}"
        headers = {**self._api.default_headers, "Content-Type": content, "Accept": accept}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        started = time.monotonic()
        status = 0
        try:
            response = await self._api.rest_client.request(
                method, url, headers, body, _request_timeout=TIMEOUT_SECONDS
            )
            status = response.status
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise TransientError(f"{method} {path}: no response from {host}: {error!r}") from error
        finally:
            self._on_call(method, status, time.monotonic() - started)
        if status >= 400:
            raise api_error(status, f"{method} {path}", text)
        body_read: Manifest = json.loads(text)
        return body_read


def api_error(status: int, call: str, text: bytes) -> OperatorError:
    """Return the OperatorError for an HTTP error of the API server."""
    detail = _status_field(text, "message") or text[:300].decode(errors="replace")
    message = f"{call}: HTTP {status} {detail}"
    if status == _FORBIDDEN and is_quota_rejection(detail):
        return QuotaExceeded(message)
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return AccessDenied(message)
    if status == _NOT_FOUND:
        return NotFound(message)
    if status == _CONFLICT:
        # Create also returns 409 if a ResourceQuota was updated concurrently.
        exists = _status_field(text, "reason") == "AlreadyExists"
        return AlreadyExists(message) if exists else Conflict(message)
    if status in (_GONE, _TOO_MANY) or status >= 500:
        return TransientError(message)
    return PermanentError(message)


def is_quota_rejection(message: str) -> bool:
    """Return whether a ResourceQuota rejected a pod, also for a limit that it requires.

    The API server reports both with the same status code and reason as a lack of permissions.
    """
    return any(text in message for text in ("exceeded quota: ", "failed quota: "))


def _status_field(text: bytes, field: str) -> str:
    """Return a field of a Kubernetes Status, or "" if `text` is not a Status."""
    try:
        return one_line(str(json.loads(text)[field]), MAX_MESSAGE)
    except (ValueError, KeyError, TypeError):
        return ""


def _proxy(url: str) -> str | None:
    """Return the proxy for a URL; aiohttp would look up the proxy in a thread on every call."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


async def connect(on_call: CallObserver = lambda *_: None) -> ApiServer:
    """Return a client for the cluster in $KUBECONFIG, or for the pod's cluster if it is not set."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    configuration = Configuration()
    if kubeconfig := os.environ.get("KUBECONFIG"):
        await config.load_kube_config(kubeconfig, client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    configuration.proxy = configuration.proxy or _proxy(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False}
    return ApiServer(ApiClient(configuration), on_call)
