"""One job through its whole life: interrupted, continued, complete, raised, shared."""

import re
from pathlib import Path
from typing import Any

import pytest

from local.drill import Outcome, Run, strike


def loads_in_attempt(status: dict[str, Any], number: int) -> bool:
    """Tell whether the attempt's driver holds the checkpoint folder and its ranks load."""
    return status.get("attempt") == number and status["progress"]["stage"] == "LoadingModel"


@pytest.mark.timeout(1500)
def test_a_job_is_interrupted_completes_goes_on_and_keeps_its_folder_to_itself(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    outcome = strike(run, "ctrl-c", "between")
    assert outcome.causes == ["Suspended"]
    assert outcome.summary["attempts"][-1]["lostSteps"] == 0
    # Asked for this late, the other worker has trained it meanwhile.
    undisturbed: Outcome = request.getfixturevalue("undisturbed")
    assert outcome.weights == undisturbed.weights

    again = run.finish(run.start())
    assert "is complete" in run.log()
    assert len(again.summary["attempts"]) == len(outcome.summary["attempts"])

    # A raised target trains on, on two ranks from the checkpoint of one; meanwhile nobody else may
    # have the folder.
    wider = ("spec.training.totalSteps=15", "spec.resources.ranks=2")
    process = run.start("", *wider)
    run.wait_for(lambda s: loads_in_attempt(s, 3), "attempt 3")
    assert "is in use by job drill" in run.refused(tmp_path / "other")
    raised = run.finish(process)
    assert raised.causes == ["Suspended"]
    assert raised.summary["step"] == 15

    # Another configuration is told from the job folder and from the checkpoint itself.
    for job_folder in (run.dir, tmp_path / "other"):
        said = run.refused(job_folder, *wider, "spec.training.seed=5")
        assert re.search(r"training\.seed.*0.*5", said), said


@pytest.mark.timeout(120)
def test_a_preflight_waits_for_a_service_that_is_down_and_names_it_at_its_deadline(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run")
    shorter = "recovery.deadlines.outageSeconds=2"
    said = run.refused(tmp_path / "job", shorter, endpoint="kb=http://127.0.0.1:9/retrieve")
    assert "failed (EndpointDown): waited" in said
    assert "endpoint kb (http://127.0.0.1:9/retrieve): ConnectionRefused" in said
    assert run.left_over() == []
