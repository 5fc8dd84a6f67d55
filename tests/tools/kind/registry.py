"""An image registry in a container next to kind's nodes, so that nodes pull only new layers.

`kind load` copies whole images, 7 GB for the trainer, even if only the last layer changed. Here
containerd's client pulls an image and tags it with the name that pods use. Layers are kept in the
Docker volume `raggrpo-registry` when clusters are deleted.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from urllib.request import urlopen

from tools.kind.go_programs import REGISTRY, tool_folder

HERE = Path(__file__).parent
NAME = "raggrpo-registry"
IMAGE = f"{NAME}:{REGISTRY}"
INSIDE = f"{NAME}:5000"
"""Address of the registry for nodes, which Docker resolves in their network."""
NETWORK = "kind"
START_SECONDS = 60.0

Run = Callable[[list[str]], str]
"""Runs a command and returns its output."""


def push_to_nodes(run: Run, images: Iterable[str], nodes: Sequence[str]) -> None:
    """Transfer images from Docker to nodes; existing layers are skipped."""
    for image in images:
        inside = push(run, image)
        for node in nodes:
            ctr = ["docker", "exec", node, "ctr", "-n", "k8s.io", "images"]
            run([*ctr, "pull", "--plain-http", inside])
            run([*ctr, "tag", "--force", inside, full_name(image)])


def remove_images(run: Run, images: Iterable[str], nodes: Iterable[str]) -> None:
    """Remove images from nodes, whose image volume is kept between clusters."""
    for node, name in product(nodes, images):
        if name in images_on(run, node):
            # crictl removes all names of the image; containerd's client keeps its id. The default
            # timeout of two seconds is too short for several GB.
            run(["docker", "exec", node, "crictl", "--timeout", "120s", "rmi", name])


def images_on(run: Run, node: str) -> list[str]:
    """Return the names of a node's images."""
    return run(["docker", "exec", node, "ctr", "-n", "k8s.io", "images", "ls", "-q"]).split()


def push(run: Run, image: str) -> str:
    """Push an image from Docker to the registry; return its name for pods."""
    outside = _start(run)
    run(["docker", "tag", image, f"{outside}/{image}"])
    run(["docker", "push", "-q", f"{outside}/{image}"])
    run(["docker", "rmi", "--no-prune", f"{outside}/{image}"])
    return f"{INSIDE}/{image}"


def trust_registry(run: Run, nodes: Iterable[str]) -> None:
    """Configure containerd on the nodes to use this registry without TLS."""
    settings = f'[host."http://{INSIDE}"]\n  capabilities = ["pull", "resolve"]\n'
    folder = f"/etc/containerd/certs.d/{INSIDE}"
    write = f"mkdir -p {folder} && printf '%s' '{settings}' > {folder}/hosts.toml"
    for node in nodes:
        run(["docker", "exec", node, "bash", "-c", write])


def stop(run: Run) -> None:
    """Remove the container; its layers stay."""
    if run(["docker", "ps", "-aq", "-f", f"name=^{NAME}$"]).strip():
        run(["docker", "rm", "-f", NAME])


def full_name(image: str) -> str:
    """Return the name under which the kubelet looks an image up."""
    host, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in host or ":" in host else f"docker.io/{image}"


def _start(run: Run) -> str:
    """Start the registry if it is not running; return its address for this machine's Docker."""
    if run(["docker", "ps", "-q", "-f", f"name=^{NAME}$"]).strip() == "":
        if run(["docker", "images", "-q", IMAGE]).strip() == "":
            _build(run)
        stop(run)
        run(
            [
                "docker", "run", "-d", "--name", NAME, "--network", NETWORK,
                "-p", "127.0.0.1::5000", "-v", f"{NAME}:/data", IMAGE,
            ]
        )  # fmt: skip
    port = run(["docker", "port", NAME, "5000/tcp"]).split()[0].rpartition(":")[2]
    _wait_for(port)
    return f"localhost:{port}"  # Docker uses no TLS for localhost


def _wait_for(port: str) -> None:
    """Wait until the registry responds; until then Docker accepts and resets connections."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2).close()
        except OSError:
            time.sleep(0.2)
        else:
            return


def _build(run: Run) -> None:
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(tool_folder("registry") / "registry", context)
        shutil.copytree(HERE / "registry_image", context, dirs_exist_ok=True)
        run(["docker", "build", "-q", "-t", IMAGE, context])
