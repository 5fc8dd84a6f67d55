"""The Helm release: `helm test` after an installation."""

import pytest

from tools.kind.go_programs import tool_folder
from tools.kind.kind_cluster import run
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import RELEASE, SYSTEM


@pytest.mark.timeout(1200)  # the first test waits for cluster and images
@pytest.mark.usefixtures("operator")
def test_helm_test_succeeds_after_install(cluster: Kubernetes) -> None:
    helm = [str(tool_folder("helm") / "helm"), "--kubeconfig", str(cluster.kubeconfig)]
    output = run([*helm, "test", RELEASE, "--namespace", SYSTEM, "--logs", "--timeout", "60s"])
    assert "Succeeded" in output
