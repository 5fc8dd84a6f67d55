"""Access to a cluster for tests: kubectl, statuses, namespaces, identities."""

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tools.kind.go_programs import tool_folder

DELETE_SECONDS = 90


@dataclass(kw_only=True)
class Kubernetes:
    """A running API server and the credentials of an administrator."""

    url: str
    folder: Path
    """Folder for files of the tests."""
    kubeconfig: Path
    """Kubeconfig of a cluster administrator."""
    authority: Path
    """CA certificate of the server."""
    namespaces: list[str] = field(default_factory=list)
    """Namespaces that tests created."""

    def kubectl(
        self,
        *arguments: str,
        stdin: str = "",
        check: bool = True,
        kubeconfig: Path | None = None,
        deadline: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, or with another `kubeconfig`.

        Raises:
            AssertionError: It failed and `check` is set; the message is its standard error.
        """
        ended = subprocess.run(
            [str(tool_folder("kube") / "kubectl"), *arguments],
            input=stdin,
            env={"KUBECONFIG": str(kubeconfig or self.kubeconfig), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=deadline,
        )
        assert ended.returncode == 0 or not check, ended.stderr
        return ended

    def read(self, *arguments: str) -> dict[str, Any]:
        output = self.kubectl("get", *arguments, "-o", "json").stdout
        value: dict[str, Any] = json.loads(output)
        return value

    def apply(self, *manifests: dict[str, Any], namespace: str = "default") -> None:
        """Apply manifests server-side as the administrator."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        self.kubectl(
            "apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-", stdin=text
        )

    def write_status(
        self, resource: str, name: str, status: dict[str, Any], namespace: str = "default"
    ) -> None:
        """Patch an object's status, as its controller would."""
        self.kubectl(
            "patch", resource, name, "-n", namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": status}),
        )  # fmt: skip

    @contextmanager
    def namespace(self, name: str, *, restricted: bool = False) -> Iterator[str]:
        """Create a namespace for one test and start its deletion afterwards.

        A restricted one enforces Pod Security `restricted`. `wait_for_deleted_namespaces` checks
        that no object blocks the deletion.
        """
        self.kubectl("create", "namespace", name)
        if restricted:
            level = "pod-security.kubernetes.io/enforce=restricted"
            self.kubectl("label", "namespace", name, level)
        self.namespaces.append(name)
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")

    def wait_for_deleted_namespaces(self) -> None:
        """Wait until all namespaces of the tests are deleted.

        Raises:
            AssertionError: The deletion of a namespace is blocked.
        """
        if self.namespaces:
            names = [f"namespace/{name}" for name in self.namespaces]
            self.kubectl("wait", "--for=delete", *names, f"--timeout={DELETE_SECONDS}s")

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig for an existing service account."""
        token = self.kubectl("create", "token", name, "-n", namespace).stdout.strip()
        path = self.folder / f"{namespace}-{name}.kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig_with(self.url, self.authority, token, namespace)))
        return path


def kubeconfig_with(url: str, ca: Path, token: str, namespace: str = "default") -> dict[str, Any]:
    authority = base64.b64encode(ca.read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}
        ],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}
        ],
    }
