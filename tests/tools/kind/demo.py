"""`make demo`: create a kind cluster, install the operator, run a sample job and show its progress.

An existing cluster, images, operator, volume and job are reused.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.kind import kind_cluster
from tools.kind.go_programs import CannotBuild, tool_folder
from tools.kind.images import REPOSITORY, images
from tools.kind.kind_cluster import CannotStart
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import STORAGE_CLASS
from tools.kind.operator_release import install

SAMPLE = REPOSITORY / "crds" / "samples" / "cluster-cpu.yaml"
NAMESPACE = "raggrpo-demo"
VOLUME = REPOSITORY / "docs" / "start" / "manifests" / "demo-volume.yaml"
PREPARE = "fill-demo"
POLL_SECONDS = 2.0
PREPARE_SECONDS = 900
ENDED = ("Succeeded", "Failed", "Invalid")
INTERRUPTED = 130

log = logging.getLogger("demo")


def demo() -> bool:
    """Run the job until it finishes and print the next commands; return whether it succeeded."""
    started = time.monotonic()
    log.info("1/4 cluster and KubeRay (built from source if no image registry is reachable)")
    cluster = kind_cluster.up()
    try:
        log.info("2/4 images and operator")
        built = images()
        install(cluster, built, REPOSITORY)
        job = yaml.safe_load(SAMPLE.read_text())
        name, status = job["metadata"]["name"], _status(cluster, job)
        if status is None:
            log.info("3/4 claim with model, questions and corpus")
            _prepare(cluster, built.trainer)
            cluster.apply(job, namespace=NAMESPACE)
        else:
            log.info("3/4 job %s exists: %s", name, status.get("phase", "Pending"))
        log.info("4/4 %s", SAMPLE.relative_to(REPOSITORY))
        status = _follow(cluster, job)
    except KeyboardInterrupt:
        _stop(cluster)
        raise
    log.info("after %.1f minutes", (time.monotonic() - started) / 60)
    print("\n".join(_ending(cluster, job, status)))
    return status["phase"] == "Succeeded"


def _status(cluster: Kubernetes, job: Mapping[str, Any]) -> dict[str, Any] | None:
    output = cluster.kubectl(
        "get", "rgj", job["metadata"]["name"], "-n", NAMESPACE, "-o", "yaml", "--ignore-not-found"
    ).stdout
    return yaml.safe_load(output).get("status", {}) if output else None


def _prepare(cluster: Kubernetes, image: str) -> None:
    """Create the claim and the pod that fills it, as described in docs/start."""
    claim, pod = yaml.safe_load_all(VOLUME.read_text())
    claim["spec"]["storageClassName"] = STORAGE_CLASS
    pod["spec"]["containers"][0]["image"] = image
    for manifest in (claim, pod):
        manifest["metadata"]["namespace"] = NAMESPACE
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": level}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    cluster.kubectl("delete", "pod", PREPARE, "-n", NAMESPACE, "--ignore-not-found")
    cluster.apply(claim, pod, namespace=NAMESPACE)
    deadline = time.monotonic() + PREPARE_SECONDS
    while (phase := _phase(cluster)) != "Succeeded":
        if phase == "Failed" or time.monotonic() > deadline:
            description = cluster.kubectl("describe", "pod", PREPARE, "-n", NAMESPACE).stdout
            raise CannotStart(f"pod {PREPARE} is {phase}:\n{description[-1500:]}")
        time.sleep(POLL_SECONDS)


def _phase(cluster: Kubernetes) -> str:
    return str(cluster.read("pod", PREPARE, "-n", NAMESPACE)["status"]["phase"])


def _follow(cluster: Kubernetes, job: Mapping[str, Any]) -> dict[str, Any]:
    """Print a line for each change of the job until it finishes; return its status."""
    shown = ""
    while True:
        status = _status(cluster, job)
        if status is None:
            raise CannotStart("the job was deleted; run `make demo` to start it again")
        line = _line(status)
        if line != shown:
            log.info("    %s  %s", time.strftime("%H:%M:%S"), line)
            shown = line
        if status.get("phase") in ENDED:
            return status
        time.sleep(POLL_SECONDS)


def _line(status: Mapping[str, Any]) -> str:
    progress = status.get("progress", {})
    values = {each["name"]: each["value"] for each in progress.get("metrics", [])}
    parts = [f"{status.get('phase', 'Pending'):<12}"]
    if progress.get("stage"):
        parts += [f"{progress['stage']:<16}", f"step {progress.get('stepOfTotal', '')}"]
    if "reward_mean" in values:
        parts.append(f"reward {float(values['reward_mean']):.3f}")
    return "  ".join(parts).rstrip()


def _ending(
    cluster: Kubernetes, job: Mapping[str, Any], status: Mapping[str, Any]
) -> Iterator[str]:
    name, checkpoints = job["metadata"]["name"], job["spec"]["checkpoint"]["path"]
    [volume] = job["spec"]["volumes"]
    yield f"\nJob {name}: {status['phase']}"
    yield from (
        f"  {each['type']}: {each['reason']}: {each.get('message', '')}"
        for each in status.get("conditions", [])
        if each["type"] in ("Accepted", "Failed") and status["phase"] != "Succeeded"
    )
    yield "Next commands:"
    yield f"  export KUBECONFIG={cluster.kubeconfig}"
    yield f"  export PATH={Path(sys.executable).parent}:{tool_folder('kube')}:$PATH"
    yield f"  kubectl get rgj,pods,pvc -n {NAMESPACE}"
    yield f"  kubectl describe rgj {name} -n {NAMESPACE}      # conditions and Events"
    yield f"  kubectl raggrpo status {name} -n {NAMESPACE}    # attempts, conditions, sizing"
    yield f"  kubectl raggrpo logs {name} -n {NAMESPACE}      # the driver's log, from the volume"
    if status["phase"] == "Succeeded":
        yield f"Model: {checkpoints}/export on the claim {volume['claimName']}"
    yield f"Start over: kubectl delete namespace {NAMESPACE}; make demo"
    yield "Delete everything: make kind-down"


def _stop(cluster: Kubernetes) -> None:
    """Delete the job and its pods; keep the claim with the checkpoints."""
    cluster.kubectl(
        "delete", "rgj,pods", "--all", "-n", NAMESPACE, "--ignore-not-found", "--wait=false",
        check=False,
    )  # fmt: skip


def main() -> None:
    """Run the demo; report an error as one message."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        succeeded = demo()
    except (CannotStart, CannotBuild, AssertionError) as reason:  # kubectl failed
        raise SystemExit(f"the demo failed: {reason}") from reason
    except KeyboardInterrupt:
        print(
            "\ninterrupted: the job was deleted, the cluster is running. `make demo` resumes from "
            "the newest checkpoint; `make kind-down` deletes the cluster",
            file=sys.stderr,
        )
        raise SystemExit(INTERRUPTED) from None
    if not succeeded:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
