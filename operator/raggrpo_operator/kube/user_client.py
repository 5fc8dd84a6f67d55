"""`UserClient`: a client of the API server with the permissions of a kubeconfig user."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.stream import WsApiClient
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL

from raggrpo_operator.errors import TransientError

from .client import PODS, ApiServer, Manifest, Resource, api_error

MAX_ERROR_BYTES = 64 * 1024
MERGE_PATCH = "application/merge-patch+json"
HEARTBEAT_SECONDS = 30.0
"""Seconds between WebSocket pings, which detect a dead connection."""


class KubeconfigError(Exception):
    """The kubeconfig or context is missing or unusable."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command run in a container."""

    exit_code: int
    errors: str
    """Last bytes of standard error, at most MAX_ERROR_BYTES."""


class UserClient(ApiServer):
    """`ApiServer` with additional verbs for the commands of `kubectl raggrpo`."""

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        super().__init__(ApiClient(configuration))
        self._configuration = configuration
        self.host: str = configuration.host
        self.namespace = namespace
        """Default namespace of the kubeconfig context."""

    async def find(
        self, resource: Resource, namespace: str, *, labels: str = "", fields: str = ""
    ) -> list[Manifest]:
        """Return the objects that match both selectors; namespace "" stands for all namespaces."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        page = await self._call("GET", resource.path(namespace), query=query)
        items: list[Manifest] = page["items"]
        return items

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, changes: Mapping[str, Any]
    ) -> None:
        """Apply a JSON merge patch to an object."""
        path = resource.path(namespace, name)
        await self._call("PATCH", path, body=dict(changes), content=MERGE_PATCH)

    async def exec_in_pod(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        on_output: Callable[[bytes], None],
    ) -> ExecResult:
        """Run a command in a container; `on_output` receives its standard output as it arrives.

        Raises:
            OperatorError: The command was not started, or the connection was lost before it exited.

        """
        path = PODS.path(namespace, pod, "exec")
        query = [("command", word) for word in command]
        query += [("container", container), ("stdout", "true"), ("stderr", "true")]
        errors = b""
        async with WsApiClient(self._configuration, heartbeat=HEARTBEAT_SECONDS) as api:
            prepared = await api.param_serialize(
                "GET", path, query_params=query, auth_settings=["BearerToken"]
            )
            response = await api.call_api(*prepared, _preload_content=False)
            try:
                async with response.response as socket:
                    async for message in socket:
                        channel, data = message.data[0], message.data[1:]
                        if channel == STDOUT_CHANNEL:
                            on_output(data)
                        elif channel == STDERR_CHANNEL:
                            errors = (errors + data)[-MAX_ERROR_BYTES:]
                        elif channel == ERROR_CHANNEL:
                            code = WsApiClient.parse_error_data(data)
                            return ExecResult(code, errors.decode(errors="replace"))
            except aiohttp.WSServerHandshakeError as error:
                call = f"create on pods/exec for pod {pod} in {namespace}"
                raise api_error(error.status, call, error.message.encode()) from error
            except aiohttp.ClientError as error:
                raise TransientError(f"exec in pod {pod} failed: {error!r}") from error
        raise TransientError(
            f"exec in pod {pod} failed: the connection was closed before the command exited; "
            "check whether the pod was deleted"
        )


async def connect_as_user(kubeconfig: str = "", context: str = "") -> UserClient:
    """Return a client for a kubeconfig and context; "" stands for kubectl's default.

    Raises:
        KubeconfigError: The file or context does not exist or cannot be used.

    """
    files = _files(kubeconfig)
    configuration = Configuration()
    try:
        # New credentials are not saved: the command must not change the user's files.
        loader = await load_kube_config(
            os.pathsep.join(files),
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
        )
        namespace = loader.current_context["context"].get("namespace") or "default"
    except (ConfigException, yaml.YAMLError, OSError, KeyError, TypeError) as error:
        subject = f"context {context} of " if context else ""
        raise KubeconfigError(
            f"{subject}{', '.join(files)} cannot be used: {error}; "
            "`kubectl config get-contexts` lists all contexts"
        ) from error
    return UserClient(configuration, namespace)


def _files(kubeconfig: str) -> list[str]:
    paths = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    existing = [str(file) for file in files if file.is_file()]
    if not existing:
        raise KubeconfigError(
            f"no kubeconfig at {paths}: specify one with --kubeconfig or $KUBECONFIG"
        )
    return existing
