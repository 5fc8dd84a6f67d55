"""The run that every drill is compared with: trained once, whichever worker needs it first."""

import pickle

import pytest
from filelock import FileLock

from local.drill import Outcome, Run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Outcome:
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    known = shared / "undisturbed.pickle"
    with FileLock(shared / "undisturbed.lock"):
        if not known.exists():
            run = Run(shared / "undisturbed")
            known.write_bytes(pickle.dumps(run.finish(run.start())))
    outcome: Outcome = pickle.loads(known.read_bytes())
    return outcome
