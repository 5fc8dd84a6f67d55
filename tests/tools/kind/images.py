"""The product's two images for a test cluster, tagged by what they are made of."""

import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.kind import registry
from tools.kind.kind_cluster import (
    BASE_IMAGE,
    CannotStart,
    builds_own_images,
    has_image,
    load,
    nodes,
    require_space,
    run,
    timed,
)

log = logging.getLogger("images")

REPOSITORY = Path(__file__).parents[3]
OPERATOR, TRAINER = "raggrpo/operator", "raggrpo/trainer"
OTHER_RAY = "2.59.0"
DEVICE = "cpu"
KEPT_IMAGES = 3
FREE_GIB = 24
"""The first trainer image: 7 GB in Docker, 3.5 packed in the registry, 3.5 and 7 in the node."""


@dataclass(frozen=True)
class Images:
    """Names of the two images in the cluster."""

    operator: str
    trainer: str


def images() -> Images:
    """Return both images, built where they are not there and loaded into the cluster.

    Raises:
        CannotStart: A build failed or there is no room; the message says so.
    """
    with _context(REPOSITORY) as context:
        requirements = f"trainer-{DEVICE}.txt"
        device = ["--build-arg", f"DEVICE={DEVICE}"]
        names = Images(
            _build(OPERATOR, context, "Dockerfile", "operator.txt"),
            _build(TRAINER, context, "trainer_image/Dockerfile", requirements, *device),
        )
    for node in nodes():
        registry.forget(run, _gone_from_docker(registry.known_to(run, node)), [node])
    load(names.operator, names.trainer)
    return names


def operator_image(sources: Path) -> str:
    """Return the operator's image of other sources, likewise."""
    with _context(sources) as context:
        name = _build(OPERATOR, context, "Dockerfile", "operator.txt")
    load(name)
    return name


def with_other_ray(trainer: str) -> str:
    """Return the name of the trainer's image with `OTHER_RAY` in it, likewise."""
    name = f"{trainer}-ray-{OTHER_RAY}"
    if not has_image(name):
        pip = "/opt/pip/bin/pip --python /opt/raggrpo/bin/python install --no-cache-dir --quiet"
        lines = [
            f"FROM {trainer}",
            "USER root",
            f"RUN python3 -m venv /opt/pip && {pip} --no-deps ray=={OTHER_RAY} && rm -r /opt/pip",
            "USER 1000:1000",
        ]
        with timed(f"image {name}"), tempfile.TemporaryDirectory() as context:
            Path(context, "Dockerfile").write_text("\n".join(lines), encoding="utf-8")
            run(["docker", "build", "-q", "-t", name, context])
    load(name)
    return name


def in_registry(trainer: str) -> str:
    """Return a name of the test cluster's registry for the trainer's image; no node has it yet.

    It has a label of its own, so that nodes do not take it for the one that they have.
    """
    name = f"{trainer}-labelled"
    registry.forget(run, [f"{registry.INSIDE}/{name}"], nodes())
    with tempfile.TemporaryDirectory() as context:
        Path(context, "Dockerfile").write_text(f"FROM {trainer}\nLABEL of=registry\n")
        run(["docker", "build", "-q", "-t", name, context])
    return registry.offer(run, name)


def give_name(name: str, image: str) -> None:
    """Let a name mean this image from now on, in Docker and in the cluster."""
    run(["docker", "tag", image, name])
    load(name)


@contextmanager
def _context(sources: Path) -> Iterator[Path]:
    """Yield a folder with what the Dockerfiles take: the wheel and the locked requirements."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        for name in ("Dockerfile", ".dockerignore", "trainer_image/Dockerfile"):
            (context / name).parent.mkdir(exist_ok=True)
            shutil.copy(sources / name, context / name)
        shutil.copytree(sources / "requirements", context / "requirements")
        wheel = ["build", "-t", "wheel", "-d", str(context / "dist")]
        run([sys.executable, "-m", "hatchling", *wheel], folder=sources)
        yield context


def _build(image: str, context: Path, dockerfile: str, requirements: str, *arguments: str) -> str:
    """Return the image's name with a tag that tells what it is made of, built when not there.

    Where no registry answers it begins with the image made of Debian's packages.
    """
    if builds_own_images():
        arguments = (*arguments, "--build-arg", f"BASE_IMAGE={BASE_IMAGE}")
    made_of = hashlib.sha256(str(arguments).encode())
    wheel = next((context / "dist").glob("*.whl"))
    for path in (context / dockerfile, context / "requirements" / requirements, wheel):
        made_of.update(path.read_bytes())
    name = f"{image}:test-{made_of.hexdigest()[:12]}"
    if not has_image(name):
        if image == TRAINER and not has_image(TRAINER):
            require_space(FREE_GIB, "the trainer's image until it is in the cluster")
        with timed(f"image {name}"):
            file = str(context / dockerfile)
            run(["docker", "build", "-q", "-t", name, "-f", file, *arguments, str(context)])
        _remove_older(image)
    return name


def _gone_from_docker(known: list[str]) -> list[str]:
    """Return those of our images of a node that this machine's Docker has removed since."""
    ours = [each for each in known if "/raggrpo/" in each and ":test-" in each]
    return [each for each in ours if not has_image(each.partition("/")[2])]


def _remove_older(image: str) -> None:
    """Keep the newest few, which share layers: each other trainer takes 3 GB of the disk."""
    found = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", image]).split()
    for name in [each for each in found if ":test-" in each][KEPT_IMAGES:]:
        run(["docker", "rmi", name])


def main() -> None:
    """Build and load both images, so that no test waits for them."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        log.info("%s", images())
    except CannotStart as reason:
        raise SystemExit(f"no images: {reason}") from reason


if __name__ == "__main__":
    main()
