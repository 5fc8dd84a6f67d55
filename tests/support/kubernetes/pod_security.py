"""Checks of the Pod Security Standard `restricted`, as documented by Kubernetes."""

from collections.abc import Iterator
from typing import Any

ALLOWED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip


def violations_of_restricted(pod: dict[str, Any]) -> list[str]:
    """Return the violations that the admission plugin would report."""
    return [
        *_of_pod(pod),
        *(line for each in _containers(pod) for line in _of_container(pod, each)),
    ]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [container for kind in kinds for container in pod.get(kind, [])]


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= ALLOWED_VOLUMES:
            yield f"volume {volume['name']} is of kind {kinds}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def _of_container(pod: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    name, container_context = container["name"], container.get("securityContext", {})
    context = pod.get("securityContext", {}) | container_context
    if container_context.get("privileged"):
        yield f"{name}: privileged"
    if container_context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    capabilities = container_context.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        yield f"{name}: capabilities {capabilities}"
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
        yield f"{name}: may run as root"
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{name}: seccompProfile"
    if container_context.get("procMount", "Default") != "Default" or container_context.get(
        "seLinuxOptions"
    ):
        yield f"{name}: procMount or seLinuxOptions"
    for port in container.get("ports", []):
        if port.get("hostPort"):
            yield f"{name}: hostPort"
