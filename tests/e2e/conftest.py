"""The kind cluster that all e2e tests share; its logs are exported when a test fails."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.builders.data.rows import write_rows
from tools.kind import kind_cluster
from tools.kind.go_programs import exclusive_lock
from tools.kind.images import REPOSITORY, Images, images
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import MONITORING, install
from tools.kind.results_table import drills_page, page
from tools.kind.training_job import seed, write_model_and_data

PAGES = {"--results-table": page, "--drills-table": drills_page}
LOGS = REPOSITORY / ".cache" / "e2e-logs"


def pytest_addoption(parser: pytest.Parser) -> None:
    for option in PAGES:
        parser.addoption(option, type=Path, help="write the results to this page")
    parser.addoption("--repeat", type=int, default=1, help="number of runs of each drill")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for option, written in PAGES.items():
        if (target := config.getoption(option)) is None:
            continue
        kinds = ("passed", "failed", "error", "skipped", "")
        reports = [
            each
            for kind in kinds
            for each in terminalreporter.stats.get(kind, [])
            if isinstance(each, pytest.TestReport)
        ]
        reports.sort(key=lambda each: each.start)
        target.write_text(written(reports), encoding="utf-8")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """A cluster with KubeRay, created if needed and kept afterwards."""
    logging.getLogger("kind").setLevel(logging.INFO)
    with one_at_a_time():
        kubernetes = kind_cluster.up()
    yield kubernetes
    kubernetes.wait_for_deleted_namespaces()
    if request.session.testsfailed:
        kind_cluster.kind("export", "logs", str(LOGS), "--name", kind_cluster.NAME)


@pytest.fixture(scope="session")
def operator(cluster: Kubernetes) -> Images:
    """The operator, installed from its chart with images of the current sources."""
    with one_at_a_time():
        built = images()
        install(cluster, built, REPOSITORY)
    return built


def one_at_a_time() -> AbstractContextManager[None]:
    """Serialize installation across test processes; Helm rejects concurrent upgrades."""
    return exclusive_lock(kind_cluster.kubeconfig().with_suffix(".lock"))


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """A namespace that enforces Pod Security `restricted`."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}", restricted=True) as name:
        yield name


@pytest.fixture(scope="session")
def shared(cluster: Kubernetes, model: Path) -> Iterator[str]:
    """A namespace with model and data that several tests share."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}", restricted=True) as name:
        seed(cluster, name, model)
        yield name


@pytest.fixture(scope="session")
def monitoring(cluster: Kubernetes) -> Iterator[str]:
    """The namespace from which metrics may be scraped."""
    with cluster.namespace(MONITORING, restricted=True) as name:
        yield name


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, prompts and passages."""
    folder = write_model_and_data(tmp_path_factory.mktemp("model"))
    # A data file whose prompts are in an unexpected column.
    write_rows(folder / "questions.jsonl", [{"question": "1 + 1 =", "answer": "2"}])
    return folder


@pytest.fixture
def seeded(cluster: Kubernetes, namespace: str, model: Path) -> str:
    """The namespace, with a claim that holds model and prompts."""
    seed(cluster, namespace, model)
    return namespace
