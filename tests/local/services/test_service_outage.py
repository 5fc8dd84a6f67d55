"""A real run during outages of its retrieval service: it waits and its result is the same.

Real Ray, vLLM, FSDP2 and the bundled retriever as an external service, 1 rank, FP32.
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
SLOW_STEPS = "slow-step@step=3:2,slow-step@step=6:2,slow-step@step=9:2"
"""Steps take 0.1 s: without pauses the run ends before the service is down."""
ROLES = ("driver", "rank", "engine", "head")


class Service:
    """A retriever outside the job."""

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
    """Yield a run of the drill job and its external, running retriever."""
    run = Run(folder)
    service = Service(folder / "corpus.jsonl")
    run.use_retriever(service.url)
    service.start()
    try:
        yield run, service
    finally:
        service.kill()


def waiting(status: dict[str, Any]) -> dict[str, Any]:
    """Return the condition WaitingForEndpoint if it is True, else an empty dict."""
    return true_condition(status, "WaitingForEndpoint")


def interrupt_service(run: Run, service: Service, seconds: float) -> dict[str, Any]:
    """Stop the service until the run has waited `seconds`; return the status at that time."""
    service.kill()
    run.wait_for(lambda status: bool(waiting(status)), "WaitingForEndpoint")
    time.sleep(seconds)
    status = run.status()
    service.start()
    run.wait_for(lambda status: not waiting(status), "the end of the wait")
    return status


def wait_for_step(run: Run, step: int) -> None:
    run.wait_for(lambda s: s.get("progress", {}).get("step", 0) >= step, f"step {step}")


@pytest.mark.row("D10")
@pytest.mark.timeout(900)
def test_flapping_service_delays_run_without_restart(undisturbed: Outcome, tmp_path: Path) -> None:
    with start_run_with_service(tmp_path / "run") as (run, service):
        process = run.start(SLOW_STEPS)
        wait_for_step(run, 2)
        during = interrupt_service(run, service, seconds=8)
        for step in (5, 8):
            wait_for_step(run, step)
            interrupt_service(run, service, seconds=0)
        outcome = run.finish(process)

    message = waiting(during)["message"]
    assert "endpoint kb" in message
    assert "since" in message
    assert "Connection" in message  # refused or reset
    assert during["progress"]["stage"] == "WaitingForEndpoint"
    assert outcome.causes == []
    [attempt] = outcome.summary["attempts"]
    assert attempt["waitingSeconds"] >= 8
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []


@pytest.mark.row("D10")
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_minute_outage_delays_run_without_restart(undisturbed: Outcome, tmp_path: Path) -> None:
    """The deadlines of stages and steps are much shorter than the outage, as by default."""
    with start_run_with_service(tmp_path / "run") as (run, service):
        process = run.start(SLOW_STEPS, "recovery.deadlines.firstStepSeconds=120")
        wait_for_step(run, 2)
        before = [run.victim(role).pid for role in ROLES]
        during = interrupt_service(run, service, seconds=600)
        after = [run.victim(role).pid for role in ROLES]
        outcome = run.finish(process)

    assert during["progress"]["stage"] == "WaitingForEndpoint"
    assert after == before
    assert outcome.causes == []
    [attempt] = outcome.summary["attempts"]
    assert 600 <= attempt["waitingSeconds"] <= 620
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []
