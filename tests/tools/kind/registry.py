"""An image registry in a container beside kind's nodes: what reaches a node is only new layers.

`kind load` writes a whole image, 7 GB for the trainer, though only its thin last layer changed.
containerd's own client pulls by name and gives the image the name that pods use; the kubelet pulls
what pods ask this registry itself for. The layers outlive clusters in the Docker volume
`raggrpo-registry`.
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
"""Where nodes find it: Docker resolves names of one network."""
NETWORK = "kind"
START_SECONDS = 60.0

Run = Callable[[list[str]], str]
"""Runs a command and returns what it printed."""


def deliver(run: Run, images: Iterable[str], nodes: Sequence[str]) -> None:
    """Give images of this machine's Docker to nodes; layers that they have are not moved."""
    for image in images:
        inside = offer(run, image)
        for node in nodes:
            ctr = ["docker", "exec", node, "ctr", "-n", "k8s.io", "images"]
            run([*ctr, "pull", "--plain-http", inside])
            run([*ctr, "tag", "--force", inside, full_name(image)])


def forget(run: Run, images: Iterable[str], nodes: Iterable[str]) -> None:
    """Remove images from nodes, which keep theirs longer than clusters last."""
    for node, name in product(nodes, images):
        if name in known_to(run, node):
            # With all names of the image: containerd's own client leaves the one that is its id.
            # Several GB take longer than the two seconds that it would wait.
            run(["docker", "exec", node, "crictl", "--timeout", "120s", "rmi", name])


def known_to(run: Run, node: str) -> list[str]:
    """Return the names of a node's images."""
    return run(["docker", "exec", node, "ctr", "-n", "k8s.io", "images", "ls", "-q"]).split()


def offer(run: Run, image: str) -> str:
    """Put an image of this machine's Docker into the registry; return its name for pods."""
    outside = _start(run)
    run(["docker", "tag", image, f"{outside}/{image}"])
    run(["docker", "push", "-q", f"{outside}/{image}"])
    run(["docker", "rmi", "--no-prune", f"{outside}/{image}"])
    return f"{INSIDE}/{image}"


def let_pull(run: Run, nodes: Iterable[str]) -> None:
    """Tell nodes that this registry has no certificate; containerd reads it at every pull."""
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
    """Start it where it does not run; return where this machine's Docker finds it."""
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
    return f"localhost:{port}"  # Docker asks registries of this name for no certificate


def _wait_for(port: str) -> None:
    """Wait until it answers: Docker takes connections for it, and resets them, until it listens."""
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
