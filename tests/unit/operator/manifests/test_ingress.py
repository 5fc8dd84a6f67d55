"""Which clients a job's NetworkPolicy admits to which ports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from raggrpo_api import names
from support.builders.operator.jobs import make_job
from support.builders.operator.manifests import SETTINGS, all_manifests, make_clustered_job

JOB_NAMESPACE = "research"
OPERATOR = SETTINGS.operator_namespace
OPERATOR_POD = dict(SETTINGS.operator_labels)
RAY_PORTS = {
    "GCS": 6379,
    "Ray Jobs API and dashboard": names.DASHBOARD_PORT,
    "Ray Client": 10001,
    "metrics of Ray": 8080,
    "agent": 52365,
    "agent's gRPC": 52366,
    "first worker": 10002,
    "last worker": 19999,
    "random port": 41234,
}
PORTS = {*RAY_PORTS.values(), names.PROGRESS_PORT, names.GATEWAY_PORT}
CONTAINER = {"type": "Container", "identify": "Trace", "container": {"image": "app:1"}}
SERVICE = {
    "type": "Http",
    "url": "http://app.apps.svc:8000/",
    "identify": "Trace",
    "allowFrom": {"namespace": "apps", "podSelector": "app=support,tier=web"},
}
AGENT_POD = {names.LABEL_JOB: "small", names.LABEL_ROLE: "agent"}


@dataclass(frozen=True)
class Client:
    """A pod, or an address outside the cluster if the namespace is empty."""

    namespace: str
    labels: Mapping[str, str]


def test_job_pods_reach_all_ports_of_each_other() -> None:
    assert open_ports(Client(JOB_NAMESPACE, {names.LABEL_JOB: "small"})) == PORTS


@pytest.mark.row("E15")
@pytest.mark.parametrize(
    ("client", "ports"),
    [
        (Client("", {}), set()),
        (Client(JOB_NAMESPACE, {}), set()),
        (Client(JOB_NAMESPACE, {names.LABEL_JOB: "other"}), set()),
        (Client("other", {names.LABEL_JOB: "small"}), set()),
        (Client("other", OPERATOR_POD), set()),
        (Client(OPERATOR, {}), set()),
        (
            Client(OPERATOR, OPERATOR_POD | {"app.kubernetes.io/component": "helm-test"}),
            set(),
        ),
        (Client(OPERATOR, OPERATOR_POD), {names.DASHBOARD_PORT, names.PROGRESS_PORT}),
        (Client("monitoring", {}), {names.PROGRESS_PORT}),
    ],
)
def test_ray_ports_are_closed_to_clients_outside_job(client: Client, ports: set[int]) -> None:
    assert open_ports(client) == ports


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    ("agent", "client", "ports"),
    [
        (CONTAINER, Client(JOB_NAMESPACE, AGENT_POD), {names.GATEWAY_PORT}),
        (CONTAINER, Client("other", AGENT_POD), set()),
        (CONTAINER, Client("apps", {"app": "support", "tier": "web"}), set()),
        (SERVICE, Client("apps", {"app": "support", "tier": "web"}), {names.GATEWAY_PORT}),
        (SERVICE, Client("apps", {"app": "support"}), set()),
        (SERVICE, Client(JOB_NAMESPACE, {"app": "support", "tier": "web"}), set()),
        (SERVICE, Client(JOB_NAMESPACE, AGENT_POD), set()),
        (None, Client(JOB_NAMESPACE, AGENT_POD), set()),
    ],
)
def test_application_of_agent_reaches_only_gateway(
    agent: Mapping[str, Any] | None, client: Client, ports: set[int]
) -> None:
    assert open_ports(client, {"rollout.agent": agent} if agent else {}) == ports


def test_container_of_agent_is_reached_only_by_head() -> None:
    policy = all_manifests(make_clustered_job(make_job({"rollout.agent": CONTAINER})))[
        "agent-networkpolicy"
    ]["spec"]
    head = {"matchLabels": {names.LABEL_JOB: "small", names.LABEL_ROLE: "head"}}
    assert policy["podSelector"] == {"matchLabels": AGENT_POD}
    assert policy["ingress"] == [
        {"from": [{"podSelector": head}], "ports": [{"protocol": "TCP", "port": 8000}]}
    ]
    dns, gateway = policy["egress"]
    assert [each["port"] for each in dns["ports"]] == [53, 53]
    assert gateway == {
        "to": [{"podSelector": head}],
        "ports": [{"protocol": "TCP", "port": names.GATEWAY_PORT}],
    }


def open_ports(client: Client, changes: Mapping[str, Any] | None = None) -> set[int]:
    """Return the ports of a job's pods that the job's NetworkPolicy opens to a client."""
    policy = all_manifests(make_clustered_job(make_job(dict(changes or {}))))["networkpolicy"]
    assert policy["metadata"]["namespace"] == JOB_NAMESPACE
    assert "Ingress" in policy["spec"]["policyTypes"]
    return {
        port
        for port in PORTS
        for rule in policy["spec"]["ingress"]
        if any(_matches(peer, client) for peer in rule["from"])
        and ("ports" not in rule or port in [each["port"] for each in rule["ports"]])
    }


def _matches(peer: Mapping[str, Any], client: Client) -> bool:
    assert peer.keys() <= {"namespaceSelector", "podSelector"}
    namespace_labels = {"kubernetes.io/metadata.name": client.namespace}
    if "namespaceSelector" in peer:
        in_namespace = _selects(peer["namespaceSelector"], namespace_labels)
    else:
        in_namespace = client.namespace == JOB_NAMESPACE
    return in_namespace and _selects(peer.get("podSelector", {}), client.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    excluded = [
        labels.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", [])
        if each["operator"] == "NotIn"
    ]
    return selector.get("matchLabels", {}).items() <= labels.items() and not any(excluded)
