"""A real run whose retrieval service becomes slow: it says so, and restarts if it was asked to."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.responses import JSONResponse, Response

from local.drill import Run
from support.servers.faulty_server import Received, serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEPS, WINDOW = 24, 5
QUICK, SLOW = 1.0, 5.0
"""Seconds of an answer. The rest of a step takes a fraction, whose noise is then no trend."""


@dataclass
class Search:
    """A Search-R1 server that takes as long as it is told to."""

    seconds: float = QUICK

    async def __call__(self, received: Received) -> Response:
        await asyncio.sleep(self.seconds)
        found = [[{"document": {"contents": f"{q} c1"}}] for q in received.body["queries"]]
        return JSONResponse({"result": found})


def a_run_with(url: str, folder: Path) -> Run:
    """The drill's job, longer, which asks this service and restarts when it degrades."""
    run = Run(folder)
    job = yaml.safe_load(run.job.read_text())
    spec = job["spec"]
    # Remembered answers would hide how long the service takes.
    spec["retrieval"]["endpoints"] = [{"name": "kb", "url": url, "cache": False}]
    spec["training"]["totalSteps"] = STEPS
    spec["monitoring"] = {"historyWindow": WINDOW}
    spec["recovery"]["restartWhenDegraded"] = True
    run.job.write_text(yaml.safe_dump(job))
    return run


def has_baseline(status: dict[str, Any]) -> bool:
    return bool(status.get("restartState", {}).get("baseline", {}).get("step", 0))


def slowing_down(status: dict[str, Any]) -> str:
    """Return the condition's message while it is true."""
    found = (c for c in status.get("conditions", []) if c["type"] == "SlowingDown")
    return next((c["message"] for c in found if c["status"] == "True"), "")


async def test_the_stage_that_grew_is_named_and_the_job_goes_on_from_where_it_was(
    tmp_path: Path,
) -> None:
    search = Search()
    async with serving(search) as server:
        run = a_run_with(server.url, tmp_path / "run")
        process = run.start()
        await asyncio.to_thread(run.wait_for, has_baseline, "a baseline")
        search.seconds = SLOW
        await asyncio.to_thread(run.wait_for, lambda s: bool(slowing_down(s)), "SlowingDown")
        told = slowing_down(run.status())
        search.seconds = QUICK
        outcome = await asyncio.to_thread(run.finish, process)

    assert "retrieve grew from " in told
    assert outcome.causes == ["Degraded"]
    first, second = reversed(outcome.summary["attempts"])
    assert first["lostSteps"] == 0
    assert second["fromStep"] == first["toStep"] < STEPS
    assert outcome.summary["step"] == STEPS
    assert outcome.left_over == []
