"""A real API server with etcd and without nodes, for fast and deterministic tests.

RBAC and the audit log are on; the controller-manager collects garbage and deletes namespaces.
Tests write the statuses that KubeRay and the kubelet would write.
"""

import json
import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from support.processes.ports import free_port
from tools.kind.go_programs import tool_folder
from tools.kind.kubernetes import Kubernetes, kubeconfig_with
from tools.kind.program import Program

log = logging.getLogger(__name__)

REPOSITORY = Path(__file__).parents[3]
ADMIN_TOKEN = "admin-token"
MANAGER_TOKEN = "manager-token"
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "validatingadmissionpolicy-status-controller",
)
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(kw_only=True)
class ApiServer(Kubernetes):
    """A running server, as tests use it."""

    audit_log: Path
    programs: dict[str, Program] = field(default_factory=dict)
    """Programs by name, for tests that stop and start them."""

    def audit_events(self) -> Iterator[dict[str, Any]]:
        """Yield the finished requests, oldest first: user, verb, objectRef, responseStatus."""
        # Files of 100 MB are renamed to audit-<time>.log, which sorts before audit.log.
        for file in sorted(self.audit_log.parent.glob("audit*.log")):
            with file.open() as lines:
                yield from map(json.loads, lines)


PLAYERS = ("python-httpx", "kubectl", "kube-")
"""User agents of all clients except the operator."""


@contextmanager
def running_api_server(folder: Path) -> Iterator[ApiServer]:
    """Run etcd, API server and controller-manager in `folder`, with our CRD and KubeRay's.

    Raises:
        CannotBuild: A program cannot be built.
        DidNotStart: A program exited or did not become ready.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        etcd = _etcd(folder)
        _run(stack, etcd, lambda: _responds(f"{_etcd_url(etcd)}/health"))
        server, api = _api_server(folder, _etcd_url(etcd))
        _run(stack, api, lambda: _is_ready(server))
        server.programs = {program.name: program for program in (etcd, api)}
        _install_crds(server)  # before the garbage collector discovers the kinds
        manager = _controller_manager(server)
        _run(stack, manager, lambda: _succeeds(server, "get", "sa", "default", "-n", "default"))
        server.programs[manager.name] = manager
        log.info("API server ready after %.1f s", time.monotonic() - started)
        yield server


def _run(stack: ExitStack, program: Program, ready: Callable[[], bool]) -> None:
    stack.callback(program.stop)
    program.start()
    program.wait_until(ready)


def _etcd(folder: Path) -> Program:
    clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = [
        str(tool_folder("etcd") / "etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",  # data is discarded after the tests
        "--log-level=warn",
    ]
    return Program("etcd", command, folder / "etcd.log")


def _etcd_url(etcd: Program) -> str:
    flag = "--advertise-client-urls="
    return next(part.removeprefix(flag) for part in etcd.command if part.startswith(flag))


def _api_server(folder: Path, etcd_url: str) -> tuple[ApiServer, Program]:
    kube, certificates = tool_folder("kube"), folder / "certificates"
    subprocess.run(
        [str(kube / "kubeadm"), "init", "phase", "certs", "sa", f"--cert-dir={certificates}"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    (folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
    (folder / "tokens.csv").write_text(
        f"{ADMIN_TOKEN},admin,1,system:masters\n{MANAGER_TOKEN},system:kube-controller-manager,2,\n"
    )
    port = free_port()
    server = ApiServer(
        url=f"https://127.0.0.1:{port}",
        folder=folder,
        kubeconfig=folder / "admin.kubeconfig",
        authority=certificates / "apiserver.crt",
        audit_log=folder / "audit.log",
    )
    command = [
        str(kube / "kube-apiserver"),
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--etcd-servers={etcd_url}",
        f"--cert-dir={certificates}",
        f"--service-account-issuer={server.url}",
        f"--service-account-key-file={certificates / 'sa.pub'}",
        f"--service-account-signing-key-file={certificates / 'sa.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",  # as in every cluster; tests check what rejects such pods
        f"--audit-policy-file={folder / 'audit.yaml'}",
        f"--audit-log-path={server.audit_log}",
        "--service-cluster-ip-range=10.0.0.0/16",
        "--endpoint-reconciler-type=none",
    ]
    return server, Program("kube-apiserver", command, folder / "kube-apiserver.log")


def _controller_manager(server: ApiServer) -> Program:
    certificates, own = server.folder / "certificates", server.folder / "manager.kubeconfig"
    authority = server.authority
    own.write_text(yaml.safe_dump(kubeconfig_with(server.url, authority, MANAGER_TOKEN)))
    command = [
        str(tool_folder("kube") / "kube-controller-manager"),
        f"--kubeconfig={own}",
        f"--controllers={','.join(CONTROLLERS)}",
        f"--root-ca-file={authority}",
        f"--service-account-private-key-file={certificates / 'sa.key'}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        f"--cert-dir={server.folder / 'manager-certificates'}",
    ]
    return Program("kube-controller-manager", command, server.folder / "manager.log")


def _install_crds(server: ApiServer) -> None:
    ours = REPOSITORY / "crds" / "raggrpojobs.yaml"
    kuberay = tool_folder("kuberay-config") / "crd" / "bases" / "ray.io_rayclusters.yaml"
    server.kubectl("apply", "--server-side", "-f", str(ours), "-f", str(kuberay))
    api = server.programs["kube-apiserver"]
    api.wait_until(lambda: _succeeds(server, "get", "raggrpojobs,rayclusters", "-A"))


def _is_ready(server: ApiServer) -> bool:
    authority = server.authority
    if not authority.exists() or not _responds(f"{server.url}/readyz", ADMIN_TOKEN):
        return False
    server.kubeconfig.write_text(
        yaml.safe_dump(kubeconfig_with(server.url, authority, ADMIN_TOKEN))
    )
    return True


def _succeeds(server: ApiServer, *arguments: str) -> bool:
    return server.kubectl(*arguments, check=False).returncode == 0


def _responds(url: str, token: str = "") -> bool:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        # Checks only that the server listens; later clients verify the certificate.
        return httpx.get(url, headers=headers, verify=False, timeout=5).is_success
    except httpx.TransportError:
        return False
