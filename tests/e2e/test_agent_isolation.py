"""Which pods reach the gateway of a job and Ray, by the NetworkPolicies that the operator renders.

Other pods stand in for those of the job, so nothing is trained.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from raggrpo_api import names
from support.builders.operator.jobs import make_job
from support.builders.operator.manifests import all_manifests, make_clustered_job
from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes
from tools.kind.network_policies import enforced
from tools.kind.objects import make_pod

# The first test waits for cluster and images.
pytestmark = pytest.mark.timeout(1200)

JOB = {names.LABEL_JOB: "small"}
"""Label of the pods of the job that `make_job` returns."""
AGENT = JOB | {names.LABEL_ROLE: "agent"}
APPLICATION = {"app": "support"}
RAY_PORTS = (6379, names.DASHBOARD_PORT, 10001, 52365)
CONTAINER = {"type": "Container", "identify": "Trace", "container": {"image": "app:1"}}
LISTEN = """
import json, socketserver, sys, threading
servers = [
    socketserver.ThreadingTCPServer(("", port), socketserver.BaseRequestHandler)
    for port in json.loads(sys.argv[1])
]
for server in servers:
    threading.Thread(target=server.serve_forever).start()
"""
"""Program that accepts connections on ports."""
CONNECT = """
import json, socket, sys
host, *ports = json.loads(sys.argv[1])
reached = []
for port in ports:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        continue
    reached.append(port)
print(json.dumps(reached))
"""
"""Program that prints the ports of a host that accept connections."""


@pytest.fixture
def apps(cluster: Kubernetes) -> Iterator[str]:
    """A namespace for applications that are not part of a job."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}", restricted=True) as name:
        yield name


@pytest.mark.row("F2")
def test_container_of_agent_reaches_gateway_only(
    cluster: Kubernetes, operator: Images, namespace: str
) -> None:
    gateway = start_head(cluster, namespace, operator.operator, CONTAINER)
    start_pod(cluster, namespace, operator.operator, "agent", AGENT)
    start_pod(cluster, namespace, operator.operator, "other", {})

    with enforced(cluster, namespace):
        assert reached(cluster, namespace, "agent", gateway) == ([names.GATEWAY_PORT], [])
        assert reached(cluster, namespace, "other", gateway) == ([], [])


@pytest.mark.row("F2")
def test_only_selected_pods_of_other_namespace_reach_gateway(
    cluster: Kubernetes, operator: Images, namespace: str, apps: str
) -> None:
    service = {
        "type": "Http",
        "url": f"http://support.{apps}.svc:8000/",
        "identify": "Trace",
        "allowFrom": {"namespace": apps, "podSelector": "app=support"},
    }
    gateway = start_head(cluster, namespace, operator.operator, service)
    start_pod(cluster, apps, operator.operator, "support", APPLICATION)
    start_pod(cluster, apps, operator.operator, "other", {})
    start_pod(cluster, namespace, operator.operator, "support", APPLICATION)

    with enforced(cluster, namespace):
        assert reached(cluster, apps, "support", gateway) == ([names.GATEWAY_PORT], [])
        assert reached(cluster, apps, "other", gateway) == ([], [])
        assert reached(cluster, namespace, "support", gateway) == ([], [])


def start_head(
    cluster: Kubernetes, namespace: str, image: str, agent: Mapping[str, Any]
) -> tuple[str, str]:
    """Start a pod in place of a job's head; return the names of its gateway and of the pod."""
    manifests = all_manifests(make_clustered_job(make_job({"rollout.agent": agent})))
    used = [each for each in manifests.values() if each["kind"] in ("NetworkPolicy", "Service")]
    for each in used:
        del each["metadata"]["ownerReferences"]
        each["metadata"]["namespace"] = namespace
    cluster.apply(*used, namespace=namespace)
    labels = JOB | {names.LABEL_ROLE: "head"}
    address = start_pod(cluster, namespace, image, "head", labels)
    gateway = manifests["gateway-service"]["metadata"]["name"]
    return f"{gateway}.{namespace}.svc", address


def start_pod(
    cluster: Kubernetes, namespace: str, image: str, name: str, labels: Mapping[str, str]
) -> str:
    """Start a pod that accepts connections on all ports of the test; return its address."""
    ports = json.dumps([names.GATEWAY_PORT, *RAY_PORTS])
    pod = make_pod(name, image, ["python", "-c", LISTEN, ports])
    pod["metadata"]["labels"] = dict(labels)
    cluster.apply(pod, namespace=namespace)
    cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "-n", namespace)
    return cluster.kubectl(
        "get", "pod", name, "-n", namespace, "-o=jsonpath={.status.podIP}"
    ).stdout


def reached(
    cluster: Kubernetes, namespace: str, pod: str, gateway: tuple[str, str]
) -> tuple[list[int], list[int]]:
    """Return the ports of the gateway's Service, and those of Ray, that a pod reaches."""

    def connect(host: str, *ports: int) -> list[int]:
        command = ("python", "-c", CONNECT, json.dumps([host, *ports]))
        output = cluster.kubectl("exec", pod, "-n", namespace, "--", *command).stdout
        accepting: list[int] = json.loads(output)
        return accepting

    service, head = gateway
    return connect(service, names.GATEWAY_PORT), connect(head, *RAY_PORTS)
