"""Egress rules of a job's pods."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.network_policy import render_network_policies
from raggrpo_operator.core.manifests.policy_selectors import job_pods
from raggrpo_operator.core.spec.resolve import resolve
from support.builders.operator.jobs import make_job
from support.builders.operator.manifests import SETTINGS, Manifest, make_clustered_job

API_SERVER = replace(SETTINGS, api_server=("10.96.0.1/32", "192.0.2.0/28", "fd00::1/128"))


def egress(changes: dict[str, Any], settings: ClusterSettings = API_SERVER) -> list[Manifest]:
    job = make_clustered_job(make_job(changes))
    policy = render_network_policies(job.metadata, settings, resolve(job).spec)[0]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    rules: list[Manifest] = policy["spec"]["egress"]
    return rules


def named(*urls: str) -> dict[str, Any]:
    endpoints = [{"name": f"e{number}", "url": url} for number, url in enumerate(urls)]
    return {"retrieval": {"mode": "Prompt", "endpoints": endpoints}}


def opened(rules: list[Manifest]) -> list[str]:
    """Return the peers the rules admit in addition to DNS and the job's own pods."""
    peers = []
    for rule in rules:
        ports = ",".join(str(each["port"]) for each in rule.get("ports", []))
        for peer in rule.get("to", []):
            if "podSelector" in peer:
                continue
            if block := peer.get("ipBlock"):
                peers.append(f"{block['cidr']}:{ports}")
            else:
                [namespace] = peer["namespaceSelector"]["matchLabels"].values()
                peers.append(f"pods of {namespace}{':' if ports else ''}{ports}")
    return peers


A_JUDGE = {
    "name": "Judge",
    "url": "http://llm.grading.svc/v1/chat/completions",
    "judge": {"model": "m", "prompt": "{completion}"},
}
A_SEARCH_SERVER = {
    "name": "kb",
    "protocol": "Http",
    "method": "GET",
    "url": "http://search.find.svc/q?q={question}&k={top_k}",
}


def test_egress_without_endpoints_allows_only_dns_and_own_pods() -> None:
    dns, own = egress({})
    assert dns == {"ports": [{"protocol": p, "port": 53} for p in ("UDP", "TCP")]}
    assert own == {"to": [{"podSelector": job_pods(make_clustered_job(make_job()).metadata)}]}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://192.0.2.77:8080/x", ["192.0.2.77/32:8080"]),
        ("https://[2001:db8::7]/x", ["2001:db8::7/128:443"]),
        ("http://[::ffff:192.0.2.77]/x", ["192.0.2.77/32:80"]),
        ("http://[64:ff9b::192.0.2.77]/x", ["64:ff9b::c000:24d/128:80"]),
        ("http://[64:ff9b::20.192.0.2]/x", ["64:ff9b::14c0:2/128:80"]),  # twice 10.96.0.1
        ("http://rag.search.svc/chat", ["pods of search"]),
        ("http://rag.search.svc.cluster.local:9000/chat", ["pods of search"]),
        ("http://rag-0.rag.search.svc/chat", ["pods of search"]),
        ("http://rag:9000/chat", ["pods of research"]),
        ("http://rag.search/chat", ["pods of search", "0.0.0.0/0:80", "::/0:80"]),
        ("https://rag.example.com/chat", ["0.0.0.0/0:443", "::/0:443"]),
        ("https://rag.example.com:8443/chat", ["0.0.0.0/0:8443", "::/0:8443"]),
        ("https://rag.a.svc.corp.net/x", ["pods of a", "0.0.0.0/0:443", "::/0:443"]),
        ("http://rag.se_arch.svc/x", []),
        ("http://rag:99999/x", []),
    ],
)
def test_endpoint_adds_matching_egress_peer(url: str, expected: list[str]) -> None:
    assert opened(egress(named(url))) == expected


@pytest.mark.row("E12")
@pytest.mark.parametrize(
    "host",
    ["10.96.0.1", "192.0.2.3", "[fd00::1]", "169.254.169.254", "[::ffff:10.96.0.1]",
     "[fd00:ec2::254]", "[fd20:ce::254]", "168.63.129.16", "100.100.100.200", "192.0.0.192",
     "[64:ff9b::10.96.0.1]", "[64:ff9b::169.254.169.254]", "[2002:a9fe:a9fe::1]",
     "[::10.96.0.1]", "[64:ff9b:1::169.254.169.254]"],
)  # fmt: skip
def test_api_server_and_metadata_addresses_are_denied(host: str) -> None:
    assert opened(egress(named(f"https://{host}/x", f"https://{host}:6443/x"))) == []


def test_external_egress_rule_excludes_api_server_and_metadata() -> None:
    [*_, outside] = egress(named("https://a.example.com/x", "https://b.example.com:6443/x"))

    assert [each["port"] for each in outside["ports"]] == [443, 6443]
    blocks = [peer["ipBlock"] for peer in outside["to"]]
    never = [ip_network(each) for block in blocks for each in block["except"]]
    for closed in ("10.96.0.1", "192.0.2.3", "fd00::1", "169.254.169.254", "fe80::1",
                   "fd00:ec2::254", "100.100.100.200", "64:ff9b::a9fe:a9fe",
                   "64:ff9b::a60:1", "64:ff9b::6464:64c8", "64:ff9b:1::a9fe:a9fe"):  # fmt: skip
        assert any(ip_address(closed) in network for network in never)
    for block in blocks:  # required by the API server
        own = ip_network(block["cidr"])
        assert all(ip_network(each).version == own.version for each in block["except"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reward.functions": [{"name": "Http", "url": "http://judge.eval.svc"}]}, "pods of eval"),
        ({"reward.functions": [A_JUDGE]}, "pods of grading"),
        ({"retrieval": {"mode": "Prompt", "endpoints": [A_SEARCH_SERVER]}}, "pods of find"),
        ({"checkpoint.backup": {"url": "s3://bucket/runs"}}, "0.0.0.0/0:443"),
        ({"checkpoint.backup": {"url": "file:///mnt/runs/copies"}}, ""),
        ({"monitoring.wandb": {"project": "p"}}, "0.0.0.0/0:443"),
        ({"egress": ["http://s3.store.svc"]}, "pods of store"),
        ({"egress": ["http://192.0.2.77:3128"]}, "192.0.2.77/32:3128"),
    ],
)
def test_egress_allows_reward_services_backups_and_listed_servers(
    changes: dict[str, Any], expected: str
) -> None:
    assert (opened(egress(changes)) or [""])[0] == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_ENDPOINT_URL", "http://s3.store.svc"), ("https_proxy", "192.0.2.77:3128"),
     ("ANY", "http://rag.team-b.svc/"), ("ANY", "http://team-b.example:8443/"), ("ANY", "http://h/ http://kb.b.svc/"),
     ("WANDB_BASE_URL", "https://h"), ("NO_PROXY", "192.0.2.77"), ("LEVEL", "debug")],
)  # fmt: skip
def test_environment_variables_add_no_egress_peer(name: str, value: str) -> None:
    assert opened(egress({"env": [{"name": name, "value": value}]})) == []


def test_settings_add_egress_rules_or_disable_restriction() -> None:
    further = {"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}
    assert egress({}, replace(API_SERVER, egress=(further,)))[-1] == further
    assert egress({}, replace(API_SERVER, restrict_egress=False)) == [{}]
