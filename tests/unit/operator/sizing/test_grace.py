from typing import Any

import pytest

from raggrpo_api.status.job_status import JobStatus, PreflightStatus, ProgressStatus
from raggrpo_api.status.restart_state import RestartState
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.sizing.grace import grace_seconds
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, make_job

UNKNOWN = Facts()


@pytest.mark.parametrize(
    ("facts", "slowest", "step", "expected"),
    [
        pytest.param(UNKNOWN, 0.0, 0.0, 30, id="nothing is known"),
        pytest.param(KNOWN_TINY, 0.0, 0.0, 30, id="a tiny model"),
        pytest.param(KNOWN_7B, 0.0, 0.0, 198, id="91.2 GB at 500 MB/s and the margin"),
        pytest.param(KNOWN_7B, 20.0, 14.2, 90, id="measured: 3 x 20 s, the step, the margin"),
        pytest.param(KNOWN_TINY, 0.1, 0.6, 30, id="a fast save"),
        pytest.param(KNOWN_7B, 900.0, 0.0, 1800, id="no longer than a checkpoint's deadline"),
    ],
)
def test_grace_period_depends_on_slowest_save_or_model_size(
    facts: Facts, slowest: float, step: float, expected: int
) -> None:
    status = JobStatus(
        preflight=PreflightStatus(facts=facts),
        restart_state=RestartState(slowest_save_seconds=slowest),
        progress=ProgressStatus(seconds_per_step=step),
    )

    assert grace_seconds(make_job().spec, status) == expected


def test_grace_period_with_adapters_covers_their_size_only() -> None:
    facts = KNOWN_7B.model_copy(update={"adapter_parameters_per_rank": 28 * 90_112})
    status = JobStatus(preflight=PreflightStatus(facts=facts))
    lora = make_job({"training.lora": {"rank": 512}}).spec

    assert grace_seconds(lora, status) == 47  # 15.5 GB at 500 MB/s and the margin


@pytest.mark.parametrize(
    ("parameters", "expected"), [(1_250_000_000, 45), (1_250_000_001, 46)], ids=["30 s", "and more"]
)
def test_grace_period_is_rounded_up_to_seconds(parameters: int, expected: int) -> None:
    facts = Facts(parameters=parameters)  # 15 GB at 500 MB/s, and the margin
    status = JobStatus(preflight=PreflightStatus(facts=facts))
    assert grace_seconds(make_job().spec, status) == expected


def test_grace_period_assumes_nodes_save_in_parallel() -> None:
    status = JobStatus(preflight=PreflightStatus(facts=KNOWN_7B))
    assert grace_seconds(make_job({"resources.nodes": 4}).spec, status) == 61


def test_grace_period_is_at_least_thirty_seconds() -> None:
    changes: dict[str, Any] = {"recovery.deadlines": {"checkpointSeconds": 5}}
    status = JobStatus(restart_state=RestartState(slowest_save_seconds=60))
    assert grace_seconds(make_job(changes).spec, status) == 30
