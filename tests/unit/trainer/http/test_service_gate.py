"""Service gate in simulated time: outages, and failures of single calls."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from raggrpo_api.trainer.progress import EndpointOutage
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.json_service import (
    MAX_SERIAL_OUTAGES,
    OUTAGES_BEFORE_SERIAL,
    GateOptions,
    JsonService,
    Request,
    RetryPolicy,
)
from raggrpo_trainer.http.pool import HttpPool, HttpResponse
from raggrpo_trainer.http.service_gate import HANG_SECONDS
from raggrpo_trainer.progress.outages import Outages
from support.processes.simulated_time import run_simulated

Behave = Callable[[float, str], float | int | Exception]
"""Maps time and question to a latency in seconds, an HTTP status, or an exception to raise."""
REFUSED = ConnectionRefusedError("connection refused")
RETRY = RetryPolicy(retries=2, first_delay_seconds=0.5)


class FakePool(HttpPool):
    """HTTP pool of a simulated service that calls `behave` for every request."""

    def __init__(self, behave: Behave) -> None:
        self.behave = behave
        self.requests: list[tuple[float, str]] = []

    async def send(
        self,
        method: str,
        url: str,
        content: str | None,
        headers: Mapping[str, str],
        proxy: str | None,
    ) -> HttpResponse:
        content = content or f"{method} {url}"
        now = asyncio.get_running_loop().time()
        self.requests.append((round(now, 2), content))
        result = self.behave(now, content)
        if isinstance(result, Exception):
            raise result
        if isinstance(result, int):
            return HttpResponse(result, b"no", "utf-8")
        await asyncio.sleep(result)
        return HttpResponse(200, content.encode(), "utf-8")


class Simulation:
    """One service, and its reported outages as (time, names)."""

    def __init__(self, behave: Behave, *, timeout_seconds: float = 30.0) -> None:
        self.pool = FakePool(behave)
        self.tasks = BackgroundTasks()
        self.reported: list[tuple[float, list[str]]] = []
        self.causes: list[str] = []
        self.outages = Outages(self._record, clock=lambda: asyncio.get_running_loop().time())
        self.service = JsonService(
            self.pool,
            "http://kb/",
            headers={},
            timeout_seconds=timeout_seconds,
            max_concurrency=64,
            retry=RETRY,
            gate=GateOptions("endpoint kb", self.outages, self.tasks),
        )

    def _record(self, outages: Sequence[EndpointOutage]) -> None:
        now = asyncio.get_running_loop().time()
        names = [each.name for each in outages]
        self.causes += [each.cause for each in outages]
        if names != (self.reported[-1][1] if self.reported else []):
            self.reported.append((now, names))

    async def call(self, question: str = "q") -> dict[str, Any]:
        return await self.service.post(Request({"question": question}), lambda answer: answer)

    async def step(self, *questions: str) -> list[Any]:
        """Make all calls concurrently, as a step does, and return responses and failures."""
        with self.outages.reporting():
            calls = (self.call(each) for each in questions)
            return await asyncio.gather(*calls, return_exceptions=True)

    async def step_at(self, seconds: float, *questions: str) -> list[Any]:
        await asyncio.sleep(seconds - asyncio.get_running_loop().time())
        return await self.step(*questions)


def down_between(*times: tuple[float, float], fault: int | Exception = REFUSED) -> Behave:
    return lambda now, _: fault if any(a <= now < b for a, b in times) else 0.01


def answers(result: Sequence[Any]) -> list[str]:
    return [each["question"] for each in result]


@pytest.mark.row("D10")
@pytest.mark.parametrize("fault", [REFUSED, 503, 429, ConnectionResetError("gone")])
def test_calls_succeed_after_outage_of_an_hour(
    fault: int | Exception,
) -> None:
    simulation = Simulation(down_between((10, 3610), fault=fault))

    async def scenario() -> list[Any]:
        await simulation.step("first")
        return await simulation.step_at(11, *"abc")

    assert answers(run_simulated(scenario())) == ["a", "b", "c"]
    (start, names), (end, none) = simulation.reported
    assert (names, none) == (["endpoint kb"], [])
    assert 11 <= start <= 12
    assert 3610 <= end <= 3617  # a probe every 5 s
    assert simulation.outages.waited_seconds == pytest.approx(end - start, abs=0.1)
    assert simulation.service.statistics.failures == {}


def test_service_receives_only_probes_during_outage() -> None:
    simulation = Simulation(down_between((10, 610)))

    async def scenario() -> list[Any]:
        await simulation.step("first")
        return await simulation.step_at(11, *(str(i) for i in range(50)))

    run_simulated(scenario())

    probes = [content for when, content in simulation.pool.requests if 20 < when < 610]
    assert 600 / 5 / 1.3 < len(probes) < 600 / 5 * 1.3
    assert set(probes) == {'{"question": "first"}'}  # the last request that succeeded


@pytest.mark.row("D10")
def test_flapping_service_does_not_lose_calls() -> None:
    outage_intervals = [(3 * i + 1.0, 3 * i + 3.0) for i in range(200)]
    simulation = Simulation(down_between(*outage_intervals))

    async def scenario() -> list[Any]:
        result = await simulation.step("first")
        for step in range(20):
            result += await simulation.step_at(step * 5 + 0.5, *(f"{step}-{i}" for i in range(4)))
        return result

    result = run_simulated(scenario())
    assert len(answers(result)) == 81
    assert len(simulation.reported) > 4


def test_failing_request_fails_alone_while_service_is_up() -> None:
    simulation = Simulation(lambda _, content: 500 if "poison" in content else 0.01)

    async def scenario() -> list[Any]:
        return await simulation.step("tea", "poison", "milk")

    tea, poison, milk = run_simulated(scenario())
    assert answers([tea, milk]) == ["tea", "milk"]
    assert isinstance(poison, CallFailed)
    assert poison.cause is FailureCause.HTTP_STATUS
    assert sum("poison" in content for _, content in simulation.pool.requests) == 1 + RETRY.retries
    assert simulation.reported == []
    assert simulation.service.statistics.failures == {FailureCause.HTTP_STATUS: 1}


def test_rejected_request_does_not_trigger_probe() -> None:
    simulation = Simulation(lambda _, content: 400 if "odd" in content else 0.01)

    async def scenario() -> list[Any]:
        return await simulation.step("odd")

    [odd] = run_simulated(scenario())
    assert isinstance(odd, CallFailed)
    assert len(simulation.pool.requests) == 1


def test_request_that_repeatedly_crashes_service_fails() -> None:
    crashed_at = [-100.0]
    innocent = [f"tea {i}" for i in range(20)]

    def crash_on_poison(now: float, content: str) -> float | Exception:
        if "poison" in content:
            crashed_at[0] = now
        return REFUSED if now - crashed_at[0] < 10 else 0.01

    simulation = Simulation(crash_on_poison)

    async def scenario() -> list[Any]:
        await simulation.step("first")
        return await simulation.step_at(1, "poison", *innocent)

    poison, *others = run_simulated(scenario())
    assert isinstance(poison, CallFailed)
    assert answers(others) == innocent
    times = sum("poison" in content for _, content in simulation.pool.requests)
    assert times <= OUTAGES_BEFORE_SERIAL + MAX_SERIAL_OUTAGES + 1 + RETRY.retries


def test_high_failure_ratio_is_outage_despite_successful_probe() -> None:
    recent: list[float] = []

    def limit_rate(now: float, _: str) -> float | int:
        """Accept at most five calls per second."""
        recent[:] = [when for when in recent if when > now - 1]
        if len(recent) >= 5:
            return 429
        recent.append(now)
        return 0.01

    simulation = Simulation(limit_rate)

    async def scenario() -> list[Any]:
        await simulation.step("first")
        return await simulation.step_at(1, *(f"q{i}" for i in range(40)))

    result = run_simulated(scenario())
    assert simulation.reported[0][1] == ["endpoint kb"]
    assert [each for each in result if isinstance(each, CallFailed)] == []


def test_hanging_service_is_reported_before_timeout() -> None:
    simulation = Simulation(lambda now, _: 1e4 if 10 <= now < 900 else 0.01, timeout_seconds=600)

    async def scenario() -> list[Any]:
        await simulation.step("first")
        return await simulation.step_at(11, "a", "b")

    assert answers(run_simulated(scenario())) == ["a", "b"]
    assert simulation.reported[0] == (pytest.approx(11 + HANG_SECONDS), ["endpoint kb"])
    assert simulation.causes[0] == "Timeout: no response for 20 s"


def test_slow_service_is_not_reported_as_outage() -> None:
    simulation = Simulation(lambda *_: 45.0, timeout_seconds=120)

    async def scenario() -> list[Any]:
        simulation.service._gate.record_latency(45.0)  # type: ignore[union-attr]  # as measured by warm-up
        return await simulation.step("a", "b")

    assert answers(run_simulated(scenario())) == ["a", "b"]
    assert simulation.reported == []


def test_outage_is_reported_only_while_step_waits() -> None:
    """Prefetched passages may wait long before a step needs them."""
    simulation = Simulation(down_between((10, 100)))

    async def scenario() -> None:
        await simulation.step("first")
        await asyncio.sleep(10)
        ahead = asyncio.ensure_future(simulation.call("ahead"))
        await asyncio.sleep(30)
        assert simulation.reported == []
        assert simulation.outages.working_time() == pytest.approx(40, abs=0.1)
        with simulation.outages.reporting():
            await ahead

    run_simulated(scenario())
    assert simulation.reported[0] == (pytest.approx(40, abs=0.1), ["endpoint kb"])
    assert simulation.outages.waited_seconds == pytest.approx(60, abs=7)


def test_service_gate_close_stops_probes() -> None:
    simulation = Simulation(down_between((0, 1e9)))

    async def scenario() -> None:
        call = asyncio.ensure_future(simulation.call())
        await asyncio.sleep(60)
        call.cancel()
        await simulation.tasks.close()
        num_requests = len(simulation.pool.requests)
        await asyncio.sleep(60)
        assert len(simulation.pool.requests) == num_requests

    run_simulated(scenario())
