"""A kind cluster with KubeRay, whether or not an image registry answers: `make kind-up`.

KIND_NODE_IMAGE decides where images come from. `stock`: kind's own node image and public images.
`own`: everything is built here from Go modules and Debian packages. Any other value: that node
image. Unset: `stock` where a registry answers, else `own`. A cluster that is there is used again.
KIND_CLUSTER is its name, KIND_NODES how many nodes a new one gets.
"""

import argparse
import base64
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any

import yaml

from tools.kind import registry
from tools.kind.go_programs import KUBERNETES, CannotBuild, tool_folder
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import shared_volumes

log = logging.getLogger("kind")

HERE = Path(__file__).parent
NAME = os.environ.get("KIND_CLUSTER", "raggrpo")
FIRST_NODE = f"{NAME}-control-plane"
READY_SECONDS = 180
PROBE_IMAGE = "hello-world"
BASE_IMAGE = "debian:bookworm-slim"
"""What images begin with where no registry answers; made from Debian's packages then."""
CONTAINERD = "/var/lib/containerd"
AUDIT_LOG = "/var/log/kubernetes/audit.log"
"""In the node; kind.yaml names it too."""
VOLUMES, VOLUMES_FOLDER = 100, "/var/local/volumes"
"""How many claims there may be until the cluster is deleted, and where nodes have their files."""
SERVICES = "10.96.0.0/16"
"""Addresses of Services; kind's default."""
FREE_GIB = 8
"""The node image, its layers and a cluster need so much."""


class CannotStart(Exception):
    """The cluster cannot be had on this machine; the message says why and what to do."""


def up() -> Kubernetes:
    """Start Docker, the cluster and KubeRay, as far as they are not there.

    Raises:
        CannotStart: With the reason.
        CannotBuild: A program could not be built.
    """
    with timed("docker"):
        run(["bash", str(HERE / "host" / "docker.sh")])
        require_space(FREE_GIB, "the cluster")
    own = builds_own_images()
    image = own_node_image() if own else _named_node_image()
    if not _is_there():
        with timed(f"cluster {NAME} from {image or 'the stock node image'}"):
            _create(int(os.environ.get("KIND_NODES", "1")), image, own=own)
    cluster = _cluster()
    _prepare_nodes(cluster, own=own)
    with timed("KubeRay"):
        _install_kuberay(cluster, own=own)
    return cluster


def down() -> None:
    """Delete the cluster; images and programs stay in their caches."""
    kind("delete", "cluster", "--name", NAME, "--kubeconfig", str(kubeconfig()))
    if _shared_folder().exists():
        # In a container: the files belong to the users of pods.
        mounted = ["docker", "run", "--rm", "-v", f"{_shared_folder()}:/volumes", BASE_IMAGE]
        run([*mounted, "find", "/volumes", "-mindepth", "1", "-delete"])
        _shared_folder().rmdir()
    if not kind("get", "clusters").split():
        registry.stop(run)


def load(*images: str) -> None:
    with timed(f"load {', '.join(images)}"):
        registry.deliver(run, images, nodes())


def nodes() -> list[str]:
    return kind("get", "nodes", "--name", NAME).split()


def pretend_gpus(cluster: Kubernetes, number: int, resource: str = "nvidia.com/gpu") -> None:
    """Have the first node offer GPUs that it lacks; pods that ask for them get scheduled."""
    amounts = {resource: str(number)}
    cluster.write_status("node", FIRST_NODE, {"capacity": amounts, "allocatable": amounts})


def kubeconfig() -> Path:
    """Return the file that names the cluster; it lies in the repository, not at ~/.kube."""
    folder = HERE.parents[2] / ".cache"
    folder.mkdir(exist_ok=True)
    return folder / f"{NAME}.kubeconfig"


@cache
def builds_own_images() -> bool:
    """Return whether everything that the cluster runs is built here."""
    chosen = os.environ.get("KIND_NODE_IMAGE", "")
    return chosen == "own" or (not chosen and not _registry_answers())


def own_node_image() -> str:
    """Return the image of a node built from Go modules and Debian packages."""
    programs = ("kube", "coredns", "etcd", "pause", "crictl")
    folders = {name: tool_folder(name) for name in programs}
    recipe = hashlib.sha256(str(sorted(folders.items())).encode())
    for path in sorted(p for p in (HERE / "node").rglob("*") if p.is_file()):
        recipe.update(path.read_bytes())
    tag = f"raggrpo-kind-node:{KUBERNETES}-{recipe.hexdigest()[:12]}"
    if not has_image(tag):
        with timed(f"node image {tag}"), tempfile.TemporaryDirectory() as out:
            for name, folder in folders.items():
                Path(out, name).symlink_to(folder / name)
            Path(out, "kubeadm").symlink_to(folders["kube"] / "kubeadm")
            run(["bash", str(HERE / "node" / "image.sh"), out, tag])
    return tag


def kind(*arguments: str) -> str:
    """Run kind and return what it printed; the configuration names files of this folder."""
    return run([str(tool_folder("kind") / "kind"), *arguments], folder=HERE)


def audit_events() -> Iterator[dict[str, Any]]:
    """Yield the operator's finished requests of the API server, oldest first.

    The log begins with the cluster: one that is used again holds earlier runs too.
    """
    text = run(["docker", "exec", FIRST_NODE, "cat", AUDIT_LOG])
    for line in text.splitlines():
        yield json.loads(line)


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a command and return what it printed; its messages go to standard error.

    Raises:
        CannotStart: It failed; the message holds its last lines.
    """
    log.debug("%s", " ".join(command))
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},  # Debian's Docker has no BuildKit
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        last = "\n".join((ended.stderr or ended.stdout).splitlines()[-15:])
        raise CannotStart(f"`{' '.join(command)[:160]}` failed:\n{last}")
    return ended.stdout


def build_manager(tool: str, image: str) -> None:
    """Make the image of a tool that is one program called `manager`."""
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(tool_folder(tool) / "manager", context)
        shutil.copy(HERE / "manager.Dockerfile", Path(context, "Dockerfile"))
        run(["docker", "build", "-q", "-t", image, context])


def _create(number: int, image: str, *, own: bool) -> None:
    """Create the cluster; several nodes share a folder of this machine for volumes."""
    config = yaml.safe_load((HERE / "kind.yaml").read_text())
    config["nodes"] += [{"role": "worker"} for _ in range(number - 1)]
    if number > 1:
        _shared_folder().mkdir(exist_ok=True)
        shared = {"hostPath": str(_shared_folder()), "containerPath": VOLUMES_FOLDER}
        for node in config["nodes"]:
            node["extraMounts"] = [*node.get("extraMounts", []), shared]
    elif own:  # nobody waits often for a cluster of more
        kept = {"hostPath": _kept_images(image), "containerPath": CONTAINERD}
        config["nodes"][0]["extraMounts"].append(kept)
    chosen = ["--image", image] if image else []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        given = ["--config", file.name, "--kubeconfig", str(kubeconfig())]
        kind("create", "cluster", "--name", NAME, "--wait", f"{READY_SECONDS}s", *given, *chosen)


def _kept_images(image: str) -> str:
    """Return the folder of the images that the node had in the cluster before.

    It takes two minutes to unpack the trainer's 7 GB. To containerd and kubelet it is as if the
    node had been restarted: what ran there has ended and is cleared away.
    """
    label = f"raggrpo.node={NAME}-0"
    volume = f"raggrpo-images-{NAME}-0-{image.rpartition('-')[2]}"
    found = run(["docker", "volume", "ls", "-q", "--filter", f"label={label}"]).split()
    for other in set(found) - {volume}:
        run(["docker", "volume", "rm", other])
    if volume not in found:
        run(["docker", "volume", "create", "--label", label, volume])
    return run(["docker", "volume", "inspect", "-f", "{{.Mountpoint}}", volume]).strip()


def _prepare_nodes(cluster: Kubernetes, own: bool) -> None:
    """Let pods run on every node, reach those of the others, and share volumes."""
    cluster.kubectl(
        "taint", "nodes", "--all", "node-role.kubernetes.io/control-plane-", check=False
    )
    if own:  # kind's own image brings a network plugin that does this
        found = cluster.read("nodes")["items"]
        for node, other in permutations(found, 2):
            [address] = [
                each["address"]
                for each in other["status"]["addresses"]
                if each["type"] == "InternalIP"
            ]
            route = ["ip", "route", "replace", other["spec"]["podCIDR"], "via", address]
            run(["docker", "exec", node["metadata"]["name"], *route])
    # An address of a Service that leads to no pod yet stays on the node: the network beyond it may
    # answer for every address, and a connection to such an answer would be kept.
    for node, chain in product(nodes(), ("FORWARD", "OUTPUT")):
        rule = f"{chain} -d {SERVICES} -p tcp -j REJECT --reject-with tcp-reset"
        refuse = f"iptables -C {rule} 2>/dev/null || iptables -I {rule}"
        run(["docker", "exec", node, "bash", "-c", refuse])
    registry.let_pull(run, nodes())
    folders = " ".join(f"{VOLUMES_FOLDER}/volume-{i}" for i in range(VOLUMES))
    # Any user may write, as where a provisioner makes them.
    make = f"mkdir -p {folders} && chmod 0777 {folders}"
    run(["docker", "exec", FIRST_NODE, "bash", "-c", make])
    cluster.apply(*shared_volumes(VOLUMES, VOLUMES_FOLDER))


def _shared_folder() -> Path:
    """Return this machine's folder for the volumes of a cluster of several nodes."""
    return kubeconfig().with_name(f"{NAME}-volumes")


def _install_kuberay(cluster: Kubernetes, own: bool) -> None:
    """Apply the module's own kustomization; its CRDs are too large for kubectl's annotation."""
    kustomization = tool_folder("kuberay-config") / "default"
    named = yaml.safe_load((kustomization / "kustomization.yaml").read_text())["images"][0]
    image = f"{named['newName']}:{named['newTag']}"
    if own:
        if not has_image(image):
            build_manager("kuberay", image)
        load(image, BASE_IMAGE)
    path = "-o=jsonpath={.spec.template.spec.containers[0].image}"
    present = cluster.kubectl("get", "deployment", "kuberay-operator", path, check=False)
    if present.stdout != image:
        cluster.kubectl("apply", "--server-side", "-k", str(kustomization))
    cluster.kubectl(
        "rollout", "status", "deployment/kuberay-operator", f"--timeout={READY_SECONDS}s",
        deadline=READY_SECONDS + 30,
    )  # fmt: skip


def _cluster() -> Kubernetes:
    kind("export", "kubeconfig", "--name", NAME, "--kubeconfig", str(kubeconfig()))
    found = yaml.safe_load(kubeconfig().read_text())["clusters"][0]["cluster"]
    authority = kubeconfig().with_suffix(".crt")
    authority.write_bytes(base64.b64decode(found["certificate-authority-data"]))
    return Kubernetes(
        url=found["server"],
        folder=kubeconfig().parent,
        kubeconfig=kubeconfig(),
        authority=authority,
    )


def _is_there() -> bool:
    """Return whether the cluster runs; one whose node was stopped is deleted."""
    if NAME not in kind("get", "clusters").split():
        return False
    if run(["docker", "inspect", "-f", "{{.State.Running}}", FIRST_NODE]).strip() == "true":
        return True
    down()
    return False


def has_image(name: str) -> bool:
    return bool(run(["docker", "images", "-q", name]).strip())


def _named_node_image() -> str:
    chosen = os.environ.get("KIND_NODE_IMAGE", "")
    return "" if chosen == "stock" else chosen


def _registry_answers() -> bool:
    try:
        run(["timeout", "60", "docker", "pull", "-q", PROBE_IMAGE])
    except CannotStart:
        log.info("no image registry answers: what the cluster runs is built here")
        return False
    return True


def require_space(gib: float, what: str) -> None:
    """Refuse to start what would fill the disk of Docker."""
    root = run(["docker", "info", "-f", "{{.DockerRootDir}}"]).strip()
    free = shutil.disk_usage(root).free / 1024**3
    if free < gib:
        raise CannotStart(
            f"{root} has {free:.0f} GiB free, {what} needs {gib}: `docker image prune`"
        )


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    log.info("%s: %.0f s", what, time.monotonic() - began)


def main() -> None:
    """Bring the cluster up or down, or print the file that names it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("up", "down"))
    verb = parser.parse_args().verb
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    began = time.monotonic()
    try:
        if verb == "down":
            down()
            return
        up()
    except (CannotStart, CannotBuild) as reason:
        raise SystemExit(f"no cluster: {reason}") from reason
    log.info(
        "ready after %.0f s: export KUBECONFIG=%s; export PATH=%s:$PATH",
        time.monotonic() - began,
        kubeconfig(),
        tool_folder("kube"),
    )


if __name__ == "__main__":
    main()
