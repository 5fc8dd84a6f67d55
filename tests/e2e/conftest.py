"""The kind cluster that all tests of this tier share, and what is kept when one fails."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import kind_cluster
from cluster.images import Images, images
from cluster.kubernetes import Kubernetes
from cluster.operator_release import install_operator

REPOSITORY = Path(__file__).parents[2]
LOGS = REPOSITORY / ".cache" / "e2e-logs"


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
    install_operator(cluster, made)
    return made


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """A namespace that admits restricted pods only, as a careful platform has it."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}") as name:
        level = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", name, level)
        yield name
