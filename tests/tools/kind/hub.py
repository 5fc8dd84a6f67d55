"""The hub of the tests in a pod of the cluster."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.servers import hub_program, hub_server, private_authority
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_pod

NAME, PORT = "hub", hub_program.PORT
MODULES = [Path(str(each.__file__)) for each in (hub_program, hub_server, private_authority)]


@dataclass(frozen=True)
class Hub:
    """A hub in a namespace."""

    cluster: Kubernetes
    namespace: str

    @property
    def url(self) -> str:
        return f"http://{NAME}.{self.namespace}:{PORT}"

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of a job that uses this hub."""
        return {
            "spec.env": [{"name": "HF_ENDPOINT", "value": self.url}],
            "spec.egress": [self.url],
        }

    def sent(self) -> dict[str, int]:
        """Return the bytes sent of each file."""
        return self._request("sent")

    def result(self) -> dict[str, int]:
        """Return the sizes of the files that a job pushed."""
        return self._request(f"files/{hub_program.RESULT}")

    def release(self) -> None:
        """Let the download of the large file continue."""
        self._request("release")

    def _request(self, path: str) -> dict[str, int]:
        proxy = f"/api/v1/namespaces/{self.namespace}/pods/{NAME}:{PORT}/proxy/{path}"
        answer: dict[str, int] = json.loads(self.cluster.kubectl("get", "--raw", proxy).stdout)
        return answer


def start_hub(cluster: Kubernetes, namespace: str, image: str, model: Path) -> Hub:
    """Start a hub that serves the files of a folder, at most 1 MiB; `image` contains Python."""
    folders = {"/hub/servers": MODULES, "/files": [*model.iterdir()]}
    pod = make_pod(
        NAME, image, ["python", "-m", "servers.hub_program", "/files", f"{NAME}.{namespace}"],
        env=[{"name": "PYTHONPATH", "value": "/hub"}],
        readinessProbe={"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        volumeMounts=[],
    )  # fmt: skip
    pod["metadata"]["labels"] = {"app": NAME}
    pod["spec"]["volumes"] = []
    for path, files in folders.items():
        name = path.rpartition("/")[2]
        sources = [f"--from-file={each}" for each in files]
        cluster.kubectl("create", "configmap", name, *sources, "-n", namespace)
        pod["spec"]["volumes"].append({"name": name, "configMap": {"name": name}})
        pod["spec"]["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path})
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]},
    }
    cluster.apply(pod, service, namespace=namespace)
    cluster.kubectl(
        "wait", f"pod/{NAME}", "--for=condition=Ready", "--timeout=90s", "-n", namespace
    )
    return Hub(cluster, namespace)
