"""`make demo`: from nothing to a trained job on a kind cluster, told while it goes.

Whatever is there already is used again: cluster, images, operator, volume and job.
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
from tools.kind.objects import make_claim, make_pod, mounting
from tools.kind.operator_release import install

SAMPLE = REPOSITORY / "crds" / "samples" / "cluster-cpu.yaml"
NAMESPACE = "raggrpo-demo"
PREPARE = "prepare"
LOOK_SECONDS = 2.0
PREPARE_SECONDS = 900
ENDED = ("Succeeded", "Failed", "Invalid")
INTERRUPTED = 130

log = logging.getLogger("demo")


def demo() -> bool:
    """Bring the job to its end and tell what to look at; return whether it succeeded."""
    began = time.monotonic()
    log.info("1/4 cluster and KubeRay (built from source where no image registry answers)")
    cluster = kind_cluster.up()
    try:
        log.info("2/4 images and operator")
        made = images()
        install(cluster, made, REPOSITORY)
        job = yaml.safe_load(SAMPLE.read_text())
        name, status = job["metadata"]["name"], _status(cluster, job)
        if status is None:
            log.info("3/4 claim with model, questions and corpus")
            _prepare(cluster, job, made.trainer)
            cluster.apply(job, namespace=NAMESPACE)
        else:
            log.info("3/4 job %s is there already: %s", name, status.get("phase", "Pending"))
        log.info("4/4 %s", SAMPLE.relative_to(REPOSITORY))
        status = _follow(cluster, job)
    except KeyboardInterrupt:
        _stop(cluster)
        raise
    log.info("after %.1f minutes", (time.monotonic() - began) / 60)
    print("\n".join(_ending(cluster, job, status)))
    return status["phase"] == "Succeeded"


def _status(cluster: Kubernetes, job: Mapping[str, Any]) -> dict[str, Any] | None:
    found = cluster.kubectl(
        "get", "rgj", job["metadata"]["name"], "-n", NAMESPACE, "-o", "yaml", "--ignore-not-found"
    ).stdout
    return yaml.safe_load(found).get("status", {}) if found else None


def _prepare(cluster: Kubernetes, job: Mapping[str, Any], image: str) -> None:
    """Fill the job's claim by a pod with the trainer's image, as its user."""
    [volume] = job["spec"]["volumes"]
    folder = volume["mountPath"]
    command = ["python", "-m", "raggrpo_quickstart", "--dir", f"{folder}/input"]
    pod = make_pod(PREPARE, image, command, env=[{"name": "HOME", "value": "/tmp"}])
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": level}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    cluster.kubectl("delete", "pod", PREPARE, "-n", NAMESPACE, "--ignore-not-found")
    claim = volume["claimName"]
    cluster.apply(make_claim(claim), mounting(pod, claim, folder), namespace=NAMESPACE)
    deadline = time.monotonic() + PREPARE_SECONDS
    while (phase := _phase(cluster)) != "Succeeded":
        if phase == "Failed" or time.monotonic() > deadline:
            told = cluster.kubectl("describe", "pod", PREPARE, "-n", NAMESPACE).stdout
            raise CannotStart(f"pod {PREPARE} is {phase}:\n{told[-1500:]}")
        time.sleep(LOOK_SECONDS)


def _phase(cluster: Kubernetes) -> str:
    return str(cluster.read("pod", PREPARE, "-n", NAMESPACE)["status"]["phase"])


def _follow(cluster: Kubernetes, job: Mapping[str, Any]) -> dict[str, Any]:
    """Print a line whenever the job has moved; return its status at the end."""
    shown = ""
    while True:
        status = _status(cluster, job)
        if status is None:
            raise CannotStart("the job was deleted meanwhile: `make demo` begins it again")
        line = _line(status)
        if line != shown:
            log.info("    %s  %s", time.strftime("%H:%M:%S"), line)
            shown = line
        if status.get("phase") in ENDED:
            return status
        time.sleep(LOOK_SECONDS)


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
    yield "Look at it:"
    yield f"  export KUBECONFIG={cluster.kubeconfig}"
    yield f"  export PATH={Path(sys.executable).parent}:{tool_folder('kube')}:$PATH"
    yield f"  kubectl get rgj,pods,pvc -n {NAMESPACE}"
    yield f"  kubectl describe rgj {name} -n {NAMESPACE}      # events, in the pods' own words"
    yield f"  kubectl raggrpo status {name} -n {NAMESPACE}    # attempts, conditions, sizing"
    yield f"  kubectl raggrpo logs {name} -n {NAMESPACE}      # the driver's log, from the volume"
    if status["phase"] == "Succeeded":
        yield f"The model: {checkpoints}/export on the claim {volume['claimName']}"
    yield f"Begin again: kubectl delete namespace {NAMESPACE}; make demo"
    yield "Delete everything: make kind-down"


def _stop(cluster: Kubernetes) -> None:
    """Delete what runs; the claim stays, and with it the checkpoints."""
    cluster.kubectl(
        "delete", "rgj,pods", "--all", "-n", NAMESPACE, "--ignore-not-found", "--wait=false",
        check=False,
    )  # fmt: skip


def main() -> None:
    """Run the demo; what stands in its way is told in one message."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        succeeded = demo()
    except (CannotStart, CannotBuild, AssertionError) as reason:  # kubectl failed
        raise SystemExit(f"no demo: {reason}") from reason
    except KeyboardInterrupt:
        print(
            "\ninterrupted: nothing of the demo runs any more but the cluster, if it was there; "
            "`make demo` goes on from the newest checkpoint, `make kind-down` deletes the cluster",
            file=sys.stderr,
        )
        raise SystemExit(INTERRUPTED) from None
    if not succeeded:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
