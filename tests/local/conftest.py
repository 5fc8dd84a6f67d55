"""Fixtures for tests with real processes."""

import pickle
from collections.abc import Iterator

import pytest
from filelock import FileLock

from local.drills.drill import Outcome, Run
from raggrpo_operator.local_runtime.processes import Processes


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Outcome:
    """Return the outcome of the reference run without faults, shared by all xdist workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    cached = shared / "undisturbed.pickle"
    with FileLock(shared / "undisturbed.lock"):
        if not cached.exists():
            run = Run(shared / "undisturbed")
            cached.write_bytes(pickle.dumps(run.finish(run.start())))
    outcome: Outcome = pickle.loads(cached.read_bytes())
    return outcome


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.terminate_all()
