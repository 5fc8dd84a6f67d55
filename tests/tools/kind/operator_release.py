"""Install, scale and kill the operator on a test cluster."""

import time
from datetime import datetime
from pathlib import Path

from tools.kind import kind_cluster
from tools.kind.go_programs import tool_folder
from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes

RELEASE = "raggrpo-operator"
SYSTEM = "raggrpo-system"
MONITORING = "e2e-monitoring"
"""The namespace from which metrics may be scraped."""
PODS = "app.kubernetes.io/component=operator"
LEADER_SECONDS = 60.0
QUICK = "settings.pollSeconds=1,settings.statusSeconds=1"
"""Shorter intervals than the chart's defaults."""


def install(
    cluster: Kubernetes, images: Images, sources: Path, replicas: int = 1, settings: str = QUICK
) -> None:
    """Install or upgrade the chart in `sources` and wait until it is ready."""
    values = [
        f"image.tag={images.operator.rpartition(':')[2]}",
        f"trainerImage.tag={images.trainer.rpartition(':')[2]}",
        f"replicas={replicas}",
        f"metrics.scrapeFrom={{{MONITORING}}}",
        *([settings] if settings else []),
    ]
    kind_cluster.run(
        [
            str(tool_folder("helm") / "helm"), "upgrade", "--install", RELEASE,
            str(sources / "helm" / "raggrpo-operator"), "--namespace", SYSTEM,
            "--create-namespace", "--kubeconfig", str(cluster.kubeconfig), "--wait",
            "--timeout", "180s", "--set", ",".join(values),
        ]
    )  # fmt: skip


def scale(cluster: Kubernetes, replicas: int) -> None:
    deployment = f"deployment/{RELEASE}"
    cluster.kubectl("scale", deployment, f"--replicas={replicas}", "-n", SYSTEM)
    cluster.kubectl("rollout", "status", deployment, "-n", SYSTEM)
    if not replicas:
        cluster.kubectl("wait", "pods", "-l", PODS, "--for=delete", "-n", SYSTEM)


def kill(cluster: Kubernetes, pod: str = "") -> None:
    """Delete the operator's pods, or one of them, without a grace period."""
    which = [pod] if pod else ["-l", PODS]
    at_once = ("--grace-period=0", "--force", "--wait=false")
    cluster.kubectl("delete", "pod", "-n", SYSTEM, *which, *at_once)


def leader(cluster: Kubernetes) -> tuple[str, datetime]:
    """Return the pod that holds the Lease, once it exists, and the time of acquisition."""
    deadline = time.monotonic() + LEADER_SECONDS
    while True:
        spec = cluster.read("lease", RELEASE, "-n", SYSTEM)["spec"]
        holder = spec["holderIdentity"]
        pod = ("get", "pod", holder, "-n", SYSTEM, "--ignore-not-found", "-o=name")
        if holder and cluster.kubectl(*pod).stdout:
            return holder, datetime.fromisoformat(spec["acquireTime"])
        assert time.monotonic() < deadline, f"no leader: {spec}"
        time.sleep(1)
