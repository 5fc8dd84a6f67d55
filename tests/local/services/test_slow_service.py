"""A real run whose retrieval service becomes slow, with restartWhenDegraded."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from local.drills.drill import Run, true_condition
from support.servers.faulty_server import Received, serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEPS = 24
CHANGES = (
    f"training.totalSteps={STEPS}",
    "monitoring.historyWindow=5",
    "recovery.restartWhenDegraded=true",
)
QUICK, SLOW = 1.0, 5.0
"""Response times in seconds; the rest of a step is shorter, so that its noise causes no trend."""


@dataclass
class Search:
    """A Search-R1 server with an adjustable response time."""

    seconds: float = QUICK

    async def __call__(self, received: Received) -> Response:
        await asyncio.sleep(self.seconds)
        results = [[{"document": {"contents": f"{q} c1"}}] for q in received.body["queries"]]
        return JSONResponse({"result": results})


def has_baseline(status: dict[str, Any]) -> bool:
    return bool(status.get("restartState", {}).get("baseline", {}).get("step", 0))


def slowing_down(status: dict[str, Any]) -> str:
    """Return the message of SlowingDown if it is True, else an empty string."""
    return str(true_condition(status, "SlowingDown").get("message", ""))


@pytest.mark.row("A25")
async def test_slow_retrieval_stage_is_reported_and_job_restarts_without_lost_steps(
    tmp_path: Path,
) -> None:
    search = Search()
    async with serving(search) as server:
        run = Run(tmp_path / "run")
        run.use_retriever(server.url)
        process = run.start("", *CHANGES)
        await asyncio.to_thread(run.wait_for, has_baseline, "a baseline")
        search.seconds = SLOW
        await asyncio.to_thread(run.wait_for, lambda s: bool(slowing_down(s)), "SlowingDown")
        message = slowing_down(run.status())
        search.seconds = QUICK
        outcome = await asyncio.to_thread(run.finish, process)

    assert "retrieve grew from " in message
    assert outcome.causes == ["Degraded"]
    first, second = reversed(outcome.summary["attempts"])
    assert first["lostSteps"] == 0
    assert second["fromStep"] == first["toStep"] < STEPS
    assert outcome.summary["step"] == STEPS
    assert outcome.left_over == []
