"""The commands of docs/start/first-cluster-job.md on a real API server without nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.docs.commands import CLUSTER_PAGE, ROOT, commands_of_api_test
from tools.kind.api_server import ApiServer
from tools.kind.go_programs import tool_folder

NAMESPACE, SYSTEM, RELEASE = "research", "raggrpo-system", "raggrpo-operator"
REGISTRY = "registry.example.com"
EXTRA_OPTIONS = {"helm upgrade": "--take-ownership --force-conflicts"}
"""Options for a test server whose CustomResourceDefinition was not installed by the chart."""
FINISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "kubectl wait pod/": ("pod", "fill-demo", {"phase": "Succeeded"}),
    "kubectl wait rgj/": (
        "rgj",
        "demo",
        {
            "conditions": [
                {
                    "type": "Complete",
                    "status": "True",
                    "reason": "TargetReached",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        },
    ),
}
"""Statuses that the kubelet and the operator write before a command can return."""


@pytest.fixture(scope="module")
def cluster(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server; objects created by the commands of the page are deleted afterwards."""
    yield api_server
    _shell(api_server, f"helm uninstall {RELEASE} -n {SYSTEM} --ignore-not-found")
    api_server.kubectl(
        "delete", "namespace", NAMESPACE, SYSTEM, "--ignore-not-found", "--wait=false"
    )


@pytest.fixture(scope="module")
def failures(cluster: ApiServer) -> list[str]:
    """The commands of the page that failed, with their output."""
    ended = (_run(cluster, command) for command in commands_of_api_test())
    return [f"{each.args}\n{each.stdout}{each.stderr}" for each in ended if each.returncode]


@pytest.mark.timeout(600)
def test_first_cluster_job_guide_commands_succeed(failures: list[str]) -> None:
    assert failures == []
    assert "REGISTRY=" + REGISTRY in CLUSTER_PAGE.read_text(encoding="utf-8")


@pytest.mark.usefixtures("failures")
def test_job_author_may_create_jobs_only_in_own_namespace(cluster: ApiServer) -> None:
    assert {
        (verb, kind, namespace): _may(cluster, verb, kind, namespace)
        for namespace in (NAMESPACE, "default")
        for verb, kind in (("create", "rgj"), ("create", "pods"), ("get", "secrets"))
    } == {
        ("create", "rgj", NAMESPACE): True,
        ("create", "pods", NAMESPACE): True,
        ("get", "secrets", NAMESPACE): False,
        ("create", "rgj", "default"): False,
        ("create", "pods", "default"): False,
        ("get", "secrets", "default"): False,
    }


def _run(cluster: ApiServer, command: str) -> "subprocess.CompletedProcess[str]":
    """Write the status that a command waits for, if any, and run the command."""
    for start, (kind, name, status) in FINISHED.items():
        if command.startswith(start):
            cluster.write_status(kind, name, status, NAMESPACE)
    options = [extra for start, extra in EXTRA_OPTIONS.items() if command.startswith(start)]
    return _shell(cluster, " ".join([command, *options]))


def _may(cluster: ApiServer, verb: str, kind: str, namespace: str) -> bool:
    answer = _shell(cluster, f"kubectl auth can-i {verb} {kind} -n {namespace} --as=alice")
    return answer.stdout.strip() == "yes"


def _shell(cluster: ApiServer, command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the page in the repository, as an administrator of the test server."""
    programs = [Path(sys.executable).parent, tool_folder("kube"), tool_folder("helm")]
    environment = {
        "HOME": str(cluster.folder),
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
        "PYTHONPATH": ":".join(sys.path),
        "REGISTRY": REGISTRY,
    }
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
