"""A Helm release of the chart on a real API server, and requests as its service account."""

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import yaml

from support.kubernetes.helm_chart import RELEASE
from tools.kind.api_server import ApiServer
from tools.kind.go_programs import tool_folder

CHART = Path("helm/raggrpo-operator").resolve()
SECONDS = 90.0


@dataclass(frozen=True)
class Helm:
    """Helm client for one API server and namespace."""

    server: ApiServer
    namespace: str
    kubeconfig: Path | None = None
    """Kubeconfig of the installing user; None for the cluster administrator."""
    release: str = RELEASE

    @property
    def fullname(self) -> str:
        """Return the name of the release's objects."""
        return self.release if RELEASE in self.release else f"{self.release}-{RELEASE}"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kubeconfig = str(self.kubeconfig or self.server.kubeconfig)
        return subprocess.run(
            [str(tool_folder("helm") / "helm"), *arguments, "--namespace", self.namespace],
            env={"KUBECONFIG": kubeconfig, "HOME": str(self.server.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def __call__(self, *arguments: str, check: bool = True) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0 or not check, ended.stderr
        return ended.stdout

    def install(self, *options: str) -> None:
        # The CRD is already applied by kubectl.
        takes = ("--take-ownership", "--force-conflicts")
        self("upgrade", "--install", self.release, str(CHART), *takes, *options)

    def install_values(self, values: Mapping[str, Any]) -> None:
        """Install or upgrade with values by their paths."""
        self.install(*(f"--set-json={key}={json.dumps(value)}" for key, value in values.items()))

    def key(self) -> dict[str, str]:
        secret = self.server.read("secret", f"{self.fullname}-key", "-n", self.namespace)
        data: dict[str, str] = secret["data"]
        return data


@dataclass(frozen=True)
class Account:
    """Client with the token of a service account."""

    server: ApiServer
    namespace: str
    name: str
    kubeconfig: Path

    @classmethod
    def of(cls, helm: Helm) -> "Account":
        """Return the operator's service account of a release."""
        kubeconfig = helm.server.service_account_kubeconfig(helm.namespace, helm.fullname)
        return cls(helm.server, helm.namespace, helm.fullname, kubeconfig)

    @cached_property
    def http(self) -> httpx.Client:
        token = yaml.safe_load(self.kubeconfig.read_text())["users"][0]["user"]["token"]
        return httpx.Client(
            base_url=self.server.url,
            headers={"Authorization": f"Bearer {token}"},
            verify=False,  # only the operator's client verifies certificates
            trust_env=False,
            timeout=30,
        )

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send a request; PATCH defaults to a merge patch."""
        patch = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        return self.http.request(method, path, json=body, headers=patch | headers)

    def wait_until_denied(self, policy: str, method: str, path: str, body: Any = None) -> None:
        """Wait until a policy denies the request; policies take effect with a delay."""
        deadline, answer = time.monotonic() + SECONDS, ""
        while f"'{policy}'" not in answer:
            assert time.monotonic() < deadline, f"{policy} refuses nothing: {answer}"
            answer = self.call(method, f"{path}?dryRun=All", body).text
            time.sleep(0.2)


def wait_for_policies(account: Account) -> None:
    """Wait until each policy of the release has denied a request of its account."""
    core = f"/api/v1/namespaces/{account.namespace}"
    owner = {
        "apiVersion": "raggrpo.io/v1alpha1", "kind": "RagGrpoJob", "name": "probe", "uid": "probe",
        "controller": True,
    }  # fmt: skip
    metadata = {"name": "probe", "labels": {"raggrpo.io/job-name": "probe"}}
    owned = metadata | {"ownerReferences": [owner]}
    unowned = {"metadata": metadata, "immutable": True}
    pod = {"metadata": owned, "spec": {"containers": [{"name": "probe", "image": "probe"}]}}
    service = {"metadata": owned, "spec": {"ports": [{"port": 80}]}}
    account.wait_until_denied(f"{account.name}-ownership", "POST", f"{core}/configmaps", unowned)
    account.wait_until_denied(f"{account.name}-pods", "POST", f"{core}/pods", pod)
    account.wait_until_denied(f"{account.name}-objects", "POST", f"{core}/services", service)
