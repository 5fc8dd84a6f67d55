"""What tests do with a cluster, whichever it is: kubectl, statuses, namespaces, identities."""

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

END_SECONDS = 90


@dataclass(kw_only=True)
class Kubernetes:
    """A running API server and who we are there."""

    url: str
    folder: Path
    """For files of the tests."""
    kubeconfig: Path
    """Of a cluster administrator."""
    authority: Path
    """Certificate that the server's is checked with."""
    namespaces: list[str] = field(default_factory=list)
    """Those that tests had."""

    def kubectl(
        self,
        *arguments: str,
        stdin: str = "",
        check: bool = True,
        kubeconfig: Path | None = None,
        deadline: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, or as whom `kubeconfig` names.

        Raises:
            AssertionError: It failed and `check` is set; the message is what it said.
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
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)
        return found

    def apply(self, *manifests: dict[str, Any], namespace: str = "default") -> None:
        """Apply manifests on the server's side as the administrator."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        self.kubectl(
            "apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-", stdin=text
        )

    def write_status(
        self, resource: str, name: str, status: dict[str, Any], namespace: str = "default"
    ) -> None:
        """Merge into an object's status, as its controller would."""
        self.kubectl(
            "patch", resource, name, "-n", namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": status}),
        )  # fmt: skip

    @contextmanager
    def namespace(self, name: str, *, restricted: bool = False) -> Iterator[str]:
        """Make a namespace for one test; it begins to end with the test.

        A restricted one admits only pods that a careful platform admits. `all_namespaces_end`
        sees them gone: nothing of ours may keep one from ending.
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

    def all_namespaces_end(self) -> None:
        """Wait until every namespace that a test had is gone.

        Raises:
            AssertionError: One of them hangs.
        """
        if self.namespaces:
            names = [f"namespace/{name}" for name in self.namespaces]
            self.kubectl("wait", "--for=delete", *names, f"--timeout={END_SECONDS}s")

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig with the rights of a service account, which must exist."""
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
