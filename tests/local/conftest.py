"""Fixtures of the tests with real processes."""

import pickle
from collections.abc import Iterator

import pytest
from filelock import FileLock

from local.drills.drill import Outcome, Run
from raggrpo_operator.local_runtime.processes import Processes


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Outcome:
    """The run that drills are compared with: trained once, whichever worker needs it first."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    known = shared / "undisturbed.pickle"
    with FileLock(shared / "undisturbed.lock"):
        if not known.exists():
            run = Run(shared / "undisturbed")
            known.write_bytes(pickle.dumps(run.finish(run.start())))
    outcome: Outcome = pickle.loads(known.read_bytes())
    return outcome


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.terminate_all()
