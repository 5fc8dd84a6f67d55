"""The kind cluster that all tests of this tier share, and what is kept when one fails."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import kind_cluster
from cluster.images import Images, images
from cluster.jobs import seed
from cluster.kubernetes import Kubernetes
from cluster.tools import tool_folder

REPOSITORY = Path(__file__).parents[2]
LOGS = REPOSITORY / ".cache" / "e2e-logs"
RELEASE, SYSTEM, MONITORING = "raggrpo-operator", "raggrpo-system", "e2e-monitoring"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """A cluster with KubeRay; started when it is not there, kept afterwards."""
    logging.getLogger("kind").setLevel(logging.INFO)
    found = kind_cluster.up()
    yield found
    found.all_namespaces_end()
    if request.session.testsfailed:
        kind_cluster.kind("export", "logs", str(LOGS), "--name", kind_cluster.NAME)


@pytest.fixture(scope="session")
def operator(cluster: Kubernetes) -> Images:
    """The operator from its chart, with images of the present sources."""
    made = images(own_base=kind_cluster.builds_own_images())
    tags = [f"image.tag={made.operator.rpartition(':')[2]}"]
    tags.append(f"trainerImage.tag={made.trainer.rpartition(':')[2]}")
    tags.append(f"metrics.scrapeFrom={{{MONITORING}}}")
    kind_cluster.run(
        [
            str(tool_folder("helm") / "helm"), "upgrade", "--install", RELEASE,
            str(REPOSITORY / "helm" / "raggrpo-operator"), "--namespace", SYSTEM,
            "--create-namespace", "--kubeconfig", str(cluster.kubeconfig), "--wait",
            "--timeout", "180s", "--set", ",".join(tags),
        ]
    )  # fmt: skip
    return made


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """A namespace that admits restricted pods only, as a careful platform has it."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}") as name:
        cluster.kubectl("label", "namespace", name, RESTRICTED)
        yield name


@pytest.fixture(scope="session")
def shared(cluster: Kubernetes, operator: Images) -> Iterator[str]:
    """A namespace that tests share, with a claim that holds model, prompts and passages."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}") as name:
        cluster.kubectl("label", "namespace", name, RESTRICTED)
        seed(cluster, name, operator.trainer)
        yield name


@pytest.fixture(scope="session")
def monitoring(cluster: Kubernetes) -> Iterator[str]:
    """The namespace from which metrics may be scraped."""
    with cluster.namespace(MONITORING) as name:
        cluster.kubectl("label", "namespace", name, RESTRICTED)
        yield name
