"""The product's two images for a test cluster, tagged by what they are made of."""

import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.kind_cluster import (
    BASE_IMAGE,
    CannotStart,
    builds_own_images,
    has_image,
    load,
    run,
    timed,
)

log = logging.getLogger("images")

REPOSITORY = Path(__file__).parents[2]
OPERATOR, TRAINER = "raggrpo/operator", "raggrpo/trainer"
DEVICE = "cpu"
FREE_GIB = 24
"""A trainer image of 7 GB lies in Docker, in the archive between the two, and in the node."""


@dataclass(frozen=True)
class Images:
    """Names of the two images in the cluster."""

    operator: str
    trainer: str


def images(own_base: bool) -> Images:
    """Return both images, built where they are not there and loaded into the cluster.

    Args:
        own_base: Begin with the image made of Debian's packages, not with the public one.

    Raises:
        CannotStart: A build failed or there is no room; the message says so.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        _fill(context)
        tag = f"test-{_digest(context, own_base)}"
        names = Images(f"{OPERATOR}:{tag}", f"{TRAINER}:{tag}")
        base = ["--build-arg", f"BASE_IMAGE={BASE_IMAGE}"] if own_base else []
        _build(names.operator, context, ["-f", "Dockerfile", *base])
        device = ["--build-arg", f"DEVICE={DEVICE}"]
        _build(names.trainer, context, ["-f", "trainer_image/Dockerfile", *device, *base])
    load(names.operator, names.trainer)
    return names


def _fill(context: Path) -> None:
    """Put into a folder what the Dockerfiles take: the wheel and the locked requirements."""
    for name in ("Dockerfile", ".dockerignore", "trainer_image/Dockerfile"):
        (context / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, context / name)
    shutil.copytree(REPOSITORY / "requirements", context / "requirements")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(context / "dist")]
    run(build, folder=REPOSITORY)


def _digest(context: Path, own_base: bool) -> str:
    made_of = hashlib.sha256(str(own_base).encode())
    for path in sorted(_files(context)):
        made_of.update(str(path.relative_to(context)).encode() + path.read_bytes())
    return made_of.hexdigest()[:12]


def _files(context: Path) -> Iterator[Path]:
    return (path for path in context.rglob("*") if path.is_file())


def _build(name: str, context: Path, options: list[str]) -> None:
    if has_image(name):
        return
    root = run(["docker", "info", "-f", "{{.DockerRootDir}}"]).strip()
    free = shutil.disk_usage(root).free / 1024**3
    if name.startswith(TRAINER) and free < FREE_GIB:
        raise CannotStart(
            f"{root} has {free:.0f} GiB free, the trainer's image needs {FREE_GIB} until it is in "
            "the cluster: `docker image prune`"
        )
    with timed(f"image {name}"):
        files = [str(context / part) if part.endswith("Dockerfile") else part for part in options]
        run(["docker", "build", "-q", "-t", name, *files, str(context)])


def main() -> None:
    """Build and load both images, so that no test waits for them."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        log.info("%s", images(builds_own_images()))
    except CannotStart as reason:
        raise SystemExit(f"no images: {reason}") from reason


if __name__ == "__main__":
    main()
