"""The kind cluster that all tests of this tier share, and what is kept when one fails."""

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
        parser.addoption(option, type=Path, help="file that receives the results as a page")
    parser.addoption("--repeat", type=int, default=1, help="run every drill so many times")


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
    """A cluster with KubeRay; started when it is not there, kept afterwards."""
    logging.getLogger("kind").setLevel(logging.INFO)
    with one_at_a_time():
        found = kind_cluster.up()
    yield found
    found.wait_for_deleted_namespaces()
    if request.session.testsfailed:
        kind_cluster.kind("export", "logs", str(LOGS), "--name", kind_cluster.NAME)


@pytest.fixture(scope="session")
def operator(cluster: Kubernetes) -> Images:
    """The operator from its chart, with images of the present sources."""
    with one_at_a_time():
        made = images()
        install(cluster, made, REPOSITORY)
    return made


def one_at_a_time() -> AbstractContextManager[None]:
    """Several processes may run tests; Helm refuses what is installed meanwhile."""
    return exclusive_lock(kind_cluster.kubeconfig().with_suffix(".lock"))


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """A namespace that admits restricted pods only, as a careful platform has it."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}", restricted=True) as name:
        yield name


@pytest.fixture(scope="session")
def shared(cluster: Kubernetes, model: Path) -> Iterator[str]:
    """A seeded namespace that several tests share."""
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
    # A file as it comes from elsewhere: its prompts are in a column that no job expects.
    write_rows(folder / "questions.jsonl", [{"question": "1 + 1 =", "answer": "2"}])
    return folder


@pytest.fixture
def seeded(cluster: Kubernetes, namespace: str, model: Path) -> str:
    """The namespace with a claim that holds model and prompts."""
    seed(cluster, namespace, model)
    return namespace
