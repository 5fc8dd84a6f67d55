"""A real run whose retrieval service goes down and comes back: it waits, its result is the same.

Real Ray, vLLM, FSDP2 and the bundled retriever as somebody else's service, 1 rank, FP32.
"""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from local.drills.drill import Outcome, Run, true_condition
from support.processes.ports import free_port

UP_SECONDS = 60
HELD = "slow-step@step=3:2,slow-step@step=6:2,slow-step@step=9:2"
"""Steps take a tenth of a second: without a pause the run is over before the service is down."""
PARTS = ("driver", "rank", "engine", "head")


class Service:
    """A retriever that does not belong to the job."""

    def __init__(self, corpus: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/retrieve"
        self._command = [sys.executable, "-m", "raggrpo_retriever", "--corpus", str(corpus)]
        self._command += ["--port", str(self._port)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)
        deadline = time.monotonic() + UP_SECONDS
        while not self._is_ready():
            assert time.monotonic() < deadline, "the retriever does not start"
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url.replace("/retrieve", "/healthz"), timeout=1):
                return True
        except OSError:
            return False


@contextmanager
def start_run_with_service(folder: Path) -> Iterator[tuple[Run, Service]]:
    """The drill's job, whose passages come from a service that is up."""
    run = Run(folder)
    service = Service(folder / "corpus.jsonl")
    run.asks(service.url)
    service.start()
    try:
        yield run, service
    finally:
        service.kill()


def waiting(status: dict[str, Any]) -> dict[str, Any]:
    """Return the condition if it is true, else nothing."""
    return true_condition(status, "WaitingForEndpoint")


def outage(run: Run, service: Service, seconds: float) -> dict[str, Any]:
    """Let the service be down until the run has waited so long; return the status then."""
    service.kill()
    run.wait_for(lambda status: bool(waiting(status)), "WaitingForEndpoint")
    time.sleep(seconds)
    status = run.status()
    service.start()
    run.wait_for(lambda status: not waiting(status), "the end of the wait")
    return status


def at_step(run: Run, step: int) -> None:
    run.wait_for(lambda s: s.get("progress", {}).get("step", 0) >= step, f"step {step}")


@pytest.mark.row("D10")
@pytest.mark.timeout(900)
def test_a_service_that_is_down_and_then_flaps_costs_waiting_time_alone(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    with start_run_with_service(tmp_path / "run") as (run, service):
        process = run.start(HELD)
        at_step(run, 2)
        during = outage(run, service, seconds=8)
        for step in (5, 8):
            at_step(run, step)
            outage(run, service, seconds=0)
        outcome = run.finish(process)

    told = waiting(during)["message"]
    assert "endpoint kb" in told
    assert "since" in told
    assert "Connection" in told  # refused, or broken by the end of the service
    assert during["progress"]["stage"] == "WaitingForEndpoint"
    assert outcome.causes == []
    [attempt] = outcome.summary["attempts"]
    assert attempt["waitingSeconds"] >= 8
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []


@pytest.mark.row("D10")
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_minutes_without_the_service_cost_ten_minutes_alone(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    """The limits of stages and steps are far shorter than the outage, as they are by default."""
    with start_run_with_service(tmp_path / "run") as (run, service):
        process = run.start(HELD, "recovery.deadlines.firstStepSeconds=120")
        at_step(run, 2)
        before = [run.victim(part).pid for part in PARTS]
        during = outage(run, service, seconds=600)
        kept = [run.victim(part).pid for part in PARTS]
        outcome = run.finish(process)

    assert during["progress"]["stage"] == "WaitingForEndpoint"
    assert kept == before
    assert outcome.causes == []
    [attempt] = outcome.summary["attempts"]
    assert 600 <= attempt["waitingSeconds"] <= 620
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []
