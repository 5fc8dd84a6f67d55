"""Create a kind cluster with KubeRay, with or without an image registry: `make kind-up`.

KIND_NODE_IMAGE selects the source of images. `stock`: kind's node image and public images. `own`:
everything is built here from Go modules and Debian packages. Any other value: that node image.
Unset: `stock` if a registry is reachable, else `own`. An existing cluster is reused. KIND_CLUSTER
is its name, KIND_NODES the number of nodes of a new one.
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
"""Base image where no registry is reachable; built from Debian packages."""
CONTAINERD = "/var/lib/containerd"
AUDIT_LOG = "/var/log/kubernetes/audit.log"
"""Path in the node; also in kind.yaml."""
MAX_VOLUMES = 100
"""Claims that can be bound until the cluster is deleted."""
VOLUMES_FOLDER = "/var/local/volumes"
"""Folder of the volumes in the nodes."""
SERVICES = "10.96.0.0/16"
"""CIDR of Services; kind's default."""
FREE_GIB = 8
"""Disk space for the node image, its layers and a cluster."""


class CannotStart(Exception):
    """The cluster cannot start on this machine; the message has cause and remedy."""


def up() -> Kubernetes:
    """Start Docker, the cluster and KubeRay, unless they are running.

    Raises:
        CannotStart: The cluster cannot start.
        CannotBuild: A program could not be built.
    """
    with timed("docker"):
        run(["bash", str(HERE / "host" / "docker.sh")])
        require_space(FREE_GIB, "the cluster")
    own = builds_own_images()
    image = own_node_image() if own else _named_node_image()
    if not _is_running():
        with timed(f"cluster {NAME} from {image or 'the stock node image'}"):
            _create(int(os.environ.get("KIND_NODES", "1")), image, own=own)
    cluster = _cluster()
    _prepare_nodes(cluster, own=own)
    with timed("KubeRay"):
        _install_kuberay(cluster, own=own)
    return cluster


def down() -> None:
    """Delete the cluster; keep cached images and programs."""
    kind("delete", "cluster", "--name", NAME, "--kubeconfig", str(kubeconfig()))
    if _shared_folder().exists():
        # In a container, because the files belong to the users of pods.
        command = ["docker", "run", "--rm", "-v", f"{_shared_folder()}:/volumes", BASE_IMAGE]
        run([*command, "find", "/volumes", "-mindepth", "1", "-delete"])
        _shared_folder().rmdir()
    if not kind("get", "clusters").split():
        registry.stop(run)


def load(*images: str) -> None:
    with timed(f"load {', '.join(images)}"):
        registry.push_to_nodes(run, images, nodes())


def nodes() -> list[str]:
    return kind("get", "nodes", "--name", NAME).split()


def pretend_gpus(cluster: Kubernetes, number: int, resource: str = "nvidia.com/gpu") -> None:
    """Make the first node report GPUs that it lacks, so that pods requesting them are scheduled."""
    amounts = {resource: str(number)}
    cluster.write_status("node", FIRST_NODE, {"capacity": amounts, "allocatable": amounts})


def kubeconfig() -> Path:
    """Return the kubeconfig of the cluster, a file in the repository's cache."""
    folder = HERE.parents[2] / ".cache"
    folder.mkdir(exist_ok=True)
    return folder / f"{NAME}.kubeconfig"


@cache
def builds_own_images() -> bool:
    """Return whether the images of the cluster are built on this machine."""
    node_image = os.environ.get("KIND_NODE_IMAGE", "")
    return node_image == "own" or (not node_image and not _is_registry_reachable())


def own_node_image() -> str:
    """Return the node image built from Go modules and Debian packages; build it if missing."""
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
    """Run kind in this folder, which its configuration refers to, and return its output."""
    return run([str(tool_folder("kind") / "kind"), *arguments], folder=HERE)


def audit_events() -> Iterator[dict[str, Any]]:
    """Yield the audit events of the API server, oldest first.

    A reused cluster still has the events of earlier runs.
    """
    text = run(["docker", "exec", FIRST_NODE, "cat", AUDIT_LOG])
    for line in text.splitlines():
        yield json.loads(line)


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a command and return its standard output.

    Raises:
        CannotStart: The command failed; the message has its last lines.
    """
    log.debug("%s", " ".join(command))
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},  # Debian's Docker lacks BuildKit
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        last = "\n".join((ended.stderr or ended.stdout).splitlines()[-15:])
        raise CannotStart(f"`{' '.join(command)[:160]}` failed:\n{last}")
    return ended.stdout


def build_manager(tool: str, image: str) -> None:
    """Build the image of a tool that consists of one program, `manager`."""
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(tool_folder(tool) / "manager", context)
        shutil.copy(HERE / "manager.Dockerfile", Path(context, "Dockerfile"))
        run(["docker", "build", "-q", "-t", image, context])


def _create(number: int, image: str, *, own: bool) -> None:
    """Create the cluster; with several nodes, volumes are in a shared folder of this machine."""
    config = yaml.safe_load((HERE / "kind.yaml").read_text())
    config["nodes"] += [{"role": "worker"} for _ in range(number - 1)]
    if number > 1:
        _shared_folder().mkdir(exist_ok=True)
        shared = {"hostPath": str(_shared_folder()), "containerPath": VOLUMES_FOLDER}
        for node in config["nodes"]:
            node["extraMounts"] = [*node.get("extraMounts", []), shared]
    elif own:
        images = {"hostPath": _image_volume(image), "containerPath": CONTAINERD}
        config["nodes"][0]["extraMounts"].append(images)
    image_option = ["--image", image] if image else []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        options = ["--config", file.name, "--kubeconfig", str(kubeconfig()), *image_option]
        kind("create", "cluster", "--name", NAME, "--wait", f"{READY_SECONDS}s", *options)


def _image_volume(image: str) -> str:
    """Return the mount point of a Docker volume that keeps a node's images between clusters.

    Unpacking the trainer's 7 GB takes two minutes. containerd and kubelet treat a new cluster as a
    restart of the node and remove the containers of the old one.
    """
    label = f"raggrpo.node={NAME}-0"
    volume = f"raggrpo-images-{NAME}-0-{image.rpartition('-')[2]}"
    volumes = run(["docker", "volume", "ls", "-q", "--filter", f"label={label}"]).split()
    for other in set(volumes) - {volume}:
        run(["docker", "volume", "rm", other])
    if volume not in volumes:
        run(["docker", "volume", "create", "--label", label, volume])
    return run(["docker", "volume", "inspect", "-f", "{{.Mountpoint}}", volume]).strip()


def _prepare_nodes(cluster: Kubernetes, own: bool) -> None:
    """Schedule pods on every node, add routes between nodes, and create volumes."""
    cluster.kubectl(
        "taint", "nodes", "--all", "node-role.kubernetes.io/control-plane-", check=False
    )
    if own:  # the stock image has a network plugin that does this
        items = cluster.read("nodes")["items"]
        for node, other in permutations(items, 2):
            [address] = [
                each["address"]
                for each in other["status"]["addresses"]
                if each["type"] == "InternalIP"
            ]
            route = ["ip", "route", "replace", other["spec"]["podCIDR"], "via", address]
            run(["docker", "exec", node["metadata"]["name"], *route])
    # Reject connections to Services without endpoints on the node. The outer network may answer
    # for any address, and clients would keep a connection to it.
    for node, chain in product(nodes(), ("FORWARD", "OUTPUT")):
        rule = f"{chain} -d {SERVICES} -p tcp -j REJECT --reject-with tcp-reset"
        command = f"iptables -C {rule} 2>/dev/null || iptables -I {rule}"
        run(["docker", "exec", node, "bash", "-c", command])
    registry.trust_registry(run, nodes())
    folders = " ".join(f"{VOLUMES_FOLDER}/volume-{i}" for i in range(MAX_VOLUMES))
    # Writable for any user, as volumes of a provisioner are.
    command = f"mkdir -p {folders} && chmod 0777 {folders}"
    run(["docker", "exec", FIRST_NODE, "bash", "-c", command])
    cluster.apply(*shared_volumes(MAX_VOLUMES, VOLUMES_FOLDER))


def _shared_folder() -> Path:
    """Return this machine's folder for the volumes of a cluster with several nodes."""
    return kubeconfig().with_name(f"{NAME}-volumes")


def _install_kuberay(cluster: Kubernetes, own: bool) -> None:
    """Apply the module's kustomization, server-side: its CRDs exceed the annotation of kubectl."""
    kustomization = tool_folder("kuberay-config") / "default"
    entry = yaml.safe_load((kustomization / "kustomization.yaml").read_text())["images"][0]
    image = f"{entry['newName']}:{entry['newTag']}"
    if own:
        if not has_image(image):
            build_manager("kuberay", image)
        load(image, BASE_IMAGE)
    path = "-o=jsonpath={.spec.template.spec.containers[0].image}"
    installed = cluster.kubectl("get", "deployment", "kuberay-operator", path, check=False)
    if installed.stdout != image:
        cluster.kubectl("apply", "--server-side", "-k", str(kustomization))
    cluster.kubectl(
        "rollout", "status", "deployment/kuberay-operator", f"--timeout={READY_SECONDS}s",
        deadline=READY_SECONDS + 30,
    )  # fmt: skip


def _cluster() -> Kubernetes:
    kind("export", "kubeconfig", "--name", NAME, "--kubeconfig", str(kubeconfig()))
    entry = yaml.safe_load(kubeconfig().read_text())["clusters"][0]["cluster"]
    authority = kubeconfig().with_suffix(".crt")
    authority.write_bytes(base64.b64decode(entry["certificate-authority-data"]))
    return Kubernetes(
        url=entry["server"],
        folder=kubeconfig().parent,
        kubeconfig=kubeconfig(),
        authority=authority,
    )


def _is_running() -> bool:
    """Return whether the cluster is running; delete it if its node was stopped."""
    if NAME not in kind("get", "clusters").split():
        return False
    if run(["docker", "inspect", "-f", "{{.State.Running}}", FIRST_NODE]).strip() == "true":
        return True
    down()
    return False


def has_image(name: str) -> bool:
    return bool(run(["docker", "images", "-q", name]).strip())


def _named_node_image() -> str:
    node_image = os.environ.get("KIND_NODE_IMAGE", "")
    return "" if node_image == "stock" else node_image


def _is_registry_reachable() -> bool:
    try:
        run(["timeout", "60", "docker", "pull", "-q", PROBE_IMAGE])
    except CannotStart:
        log.info("no image registry is reachable; building the images of the cluster")
        return False
    return True


def require_space(gib: float, what: str) -> None:
    """Raise CannotStart if Docker's disk lacks space."""
    root = run(["docker", "info", "-f", "{{.DockerRootDir}}"]).strip()
    free = shutil.disk_usage(root).free / 1024**3
    if free < gib:
        raise CannotStart(
            f"{root} has {free:.0f} GiB free, {what} needs {gib} GiB: run `docker image prune`"
        )


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    log.info("%s: %.0f s", what, time.monotonic() - started)


def main() -> None:
    """Create or delete the cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("up", "down"))
    verb = parser.parse_args().verb
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    started = time.monotonic()
    try:
        if verb == "down":
            down()
            return
        up()
    except (CannotStart, CannotBuild) as reason:
        raise SystemExit(f"no cluster: {reason}") from reason
    log.info(
        "ready after %.0f s: export KUBECONFIG=%s; export PATH=%s:$PATH",
        time.monotonic() - started,
        kubeconfig(),
        tool_folder("kube"),
    )


if __name__ == "__main__":
    main()
