"""Deployment and Service of a server that runs for a job: a managed retriever or an agent."""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.status.sizing import PodRole

from .metadata import Manifest, child_metadata
from .pods import pod_labels

LIVENESS = {"periodSeconds": 20, "failureThreshold": 6}
"""The port of a server that hangs stays open, so only an exit or a closed port restarts it."""
STARTUP_PERIOD_SECONDS = 5


def deployment(
    job: Metadata,
    name: str,
    role: PodRole,
    labels: dict[str, str],
    pod: Manifest,
    *,
    replicas: int = 1,
    spec_hash: dict[str, str] | None = None,
) -> Manifest:
    """Return the Deployment of a server; `labels` select its pods among those of the job."""
    strategy = "Recreate" if replicas == 1 else "RollingUpdate"
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(job, name, labels=labels | (spec_hash or {})),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": _selector(job, labels)},
            "strategy": {"type": strategy},
            "template": {
                "metadata": {"labels": pod_labels(job, role) | labels | (spec_hash or {})},
                "spec": pod | {"terminationGracePeriodSeconds": 10},
            },
        },
    }


def service(
    job: Metadata, name: str, labels: dict[str, str], port: int, target: int | str = "http"
) -> Manifest:
    """Return the Service of the job's pods with these labels."""
    entry = {"name": "http", "protocol": "TCP", "port": port, "targetPort": target}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(job, name, labels=labels),
        "spec": {
            "type": "ClusterIP",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": _selector(job, labels),
            "ports": [entry],
        },
    }


def server_ports_and_probes(port: int, health_path: str, start_seconds: int) -> Manifest:
    """Return the port and probes of a server's container; without a path, the port is probed.

    A server that does not open its port within `start_seconds` is restarted.
    """
    http = {"httpGet": {"path": health_path, "port": "http"}}
    tcp = {"tcpSocket": {"port": "http"}}
    ready = {"periodSeconds": 5, "timeoutSeconds": 3}
    starting = {
        "periodSeconds": STARTUP_PERIOD_SECONDS,
        "failureThreshold": max(1, start_seconds // STARTUP_PERIOD_SECONDS),
    }
    return {
        "ports": [{"name": "http", "containerPort": port}],
        "readinessProbe": (http if health_path else tcp) | ready,
        "livenessProbe": tcp | LIVENESS,
        "startupProbe": tcp | starting,
    }


def service_address(namespace: str, name: str, port: int) -> str:
    """Return the base URL of a Service."""
    return f"http://{name}.{namespace}.svc:{port}"


def _selector(job: Metadata, labels: dict[str, str]) -> dict[str, str]:
    return {names.LABEL_JOB: job.name, **labels}
