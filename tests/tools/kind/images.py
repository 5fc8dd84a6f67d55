"""Build the two images for a test cluster, tagged by a hash of their inputs."""

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
"""Disk space for the first trainer image: Docker, registry and node keep copies of it."""


@dataclass(frozen=True)
class Images:
    """Names of the two images in the cluster."""

    operator: str
    trainer: str


def images() -> Images:
    """Build both images if they are missing, load them into the cluster and return their names.

    Raises:
        CannotStart: A build failed, or the disk is full.
    """
    with _context(REPOSITORY) as context:
        requirements = f"trainer-{DEVICE}.txt"
        device = ["--build-arg", f"DEVICE={DEVICE}"]
        names = Images(
            _build(OPERATOR, context, "Dockerfile", "operator.txt"),
            _build(TRAINER, context, "trainer_image/Dockerfile", requirements, *device),
        )
    for node in nodes():
        registry.remove_images(run, _gone_from_docker(registry.images_on(run, node)), [node])
    load(names.operator, names.trainer)
    return names


def build_operator_image(sources: Path) -> str:
    """Build and load the operator's image from other sources; return its name."""
    with _context(sources) as context:
        name = _build(OPERATOR, context, "Dockerfile", "operator.txt")
    load(name)
    return name


def build_other_ray_image(trainer: str) -> str:
    """Build and load the trainer's image with Ray `OTHER_RAY`; return its name."""
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


def build_agent_image(trainer: str) -> str:
    """Build and load an image with the quickstart's application as a service; return its name."""
    sources = sorted((REPOSITORY / "crds" / "samples" / "agents").glob("quickstart_*.py"))
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:12]
    name = f"{trainer}-agent-{digest}"
    if not has_image(name):
        corpus = (
            "from pathlib import Path; from raggrpo_quickstart import records; "
            "records.write_corpus(records.load_records(), Path('/app/corpus.jsonl'))"
        )
        lines = [
            f"FROM {trainer}",
            "USER root",
            "COPY *.py /app/",
            f'RUN chmod -R a+rX /app && python -c "{corpus}"',
            "ENV QUICKSTART_CORPUS=/app/corpus.jsonl",
            "USER 1000:1000",
            'CMD ["python", "/app/quickstart_service.py"]',
        ]
        with timed(f"image {name}"), tempfile.TemporaryDirectory() as context:
            for each in sources:
                shutil.copy(each, context)
            Path(context, "Dockerfile").write_text("\n".join(lines), encoding="utf-8")
            run(["docker", "build", "-q", "-t", name, context])
    load(name)
    return name


def push_to_registry(trainer: str) -> str:
    """Push the trainer's image to the cluster's registry and return its name there.

    A label makes the digest differ from that of the image on the nodes.
    """
    name = f"{trainer}-labeled"
    registry.remove_images(run, [f"{registry.INSIDE}/{name}"], nodes())
    with tempfile.TemporaryDirectory() as context:
        Path(context, "Dockerfile").write_text(f"FROM {trainer}\nLABEL of=registry\n")
        run(["docker", "build", "-q", "-t", name, context])
    return registry.push(run, name)


def retag(name: str, image: str) -> None:
    """Move the tag `name` to an image, in Docker and in the cluster."""
    run(["docker", "tag", image, name])
    load(name)


@contextmanager
def _context(sources: Path) -> Iterator[Path]:
    """Yield a build context with the wheel and the locked requirements."""
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
    """Build an image if it is missing; return its name, with a hash of its inputs as tag.

    Without a registry the base image is the one built from Debian packages.
    """
    if builds_own_images():
        arguments = (*arguments, "--build-arg", f"BASE_IMAGE={BASE_IMAGE}")
    digest = hashlib.sha256(str(arguments).encode())
    wheel = next((context / "dist").glob("*.whl"))
    for path in (context / dockerfile, context / "requirements" / requirements, wheel):
        digest.update(path.read_bytes())
    name = f"{image}:test-{digest.hexdigest()[:12]}"
    if not has_image(name):
        if image == TRAINER and not has_image(TRAINER):
            require_space(FREE_GIB, "the trainer's image")
        with timed(f"image {name}"):
            file = str(context / dockerfile)
            run(["docker", "build", "-q", "-t", name, "-f", file, *arguments, str(context)])
        _remove_older(image)
    return name


def _gone_from_docker(known: list[str]) -> list[str]:
    """Return this project's images on a node that Docker no longer has."""
    ours = [each for each in known if "/raggrpo/" in each and ":test-" in each]
    return [each for each in ours if not has_image(each.partition("/")[2])]


def _remove_older(image: str) -> None:
    """Remove all but the newest images; each trainer image takes 3 GB."""
    names = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", image]).split()
    for name in [each for each in names if ":test-" in each][KEPT_IMAGES:]:
        run(["docker", "rmi", name])


def main() -> None:
    """Build and load both images before the tests start."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        log.info("%s", images())
    except CannotStart as reason:
        raise SystemExit(f"no images: {reason}") from reason


if __name__ == "__main__":
    main()
