"""A service's gate on a simulated clock: what is an outage, what is one call's own failure."""

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
"""Time and question to seconds that the answer takes, an HTTP status, or what is raised."""
REFUSED = ConnectionRefusedError("nobody listens")
RETRY = RetryPolicy(retries=2, first_delay_seconds=0.5)


class FakePool(HttpPool):
    """A service that behaves as told at each moment."""

    def __init__(self, behave: Behave) -> None:
        self.behave, self.asked = behave, list[tuple[float, str]]()

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
        self.asked.append((round(now, 2), content))
        done = self.behave(now, content)
        if isinstance(done, Exception):
            raise done
        if isinstance(done, int):
            return HttpResponse(done, b"no", "utf-8")
        await asyncio.sleep(done)
        return HttpResponse(200, content.encode(), "utf-8")


class World:
    """One service, and everything that was told about its outages: (time, names)."""

    def __init__(self, behave: Behave, *, timeout_seconds: float = 30.0) -> None:
        self.pool, self.tasks = FakePool(behave), BackgroundTasks()
        self.reported: list[tuple[float, list[str]]] = []
        self.causes: list[str] = []
        self.outages = Outages(self._told, clock=lambda: asyncio.get_running_loop().time())
        self.service = JsonService(
            self.pool,
            "http://kb/",
            headers={},
            timeout_seconds=timeout_seconds,
            max_concurrency=64,
            retry=RETRY,
            gate=GateOptions("endpoint kb", self.outages, self.tasks),
        )

    def _told(self, outages: Sequence[EndpointOutage]) -> None:
        now, names = asyncio.get_running_loop().time(), [each.name for each in outages]
        self.causes += [each.cause for each in outages]
        if names != (self.reported[-1][1] if self.reported else []):
            self.reported.append((now, names))

    async def ask(self, question: str = "q") -> dict[str, Any]:
        return await self.service.post(Request({"question": question}), lambda answer: answer)

    async def step(self, *questions: str) -> list[Any]:
        """Ask all at once, as a step does, and return answers and failures."""
        with self.outages.reporting():
            asked = (self.ask(each) for each in questions)
            return await asyncio.gather(*asked, return_exceptions=True)

    async def later(self, seconds: float, *questions: str) -> list[Any]:
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
    world = World(down_between((10, 3610), fault=fault))

    async def scenario() -> list[Any]:
        await world.step("first")
        return await world.later(11, *"abc")

    assert answers(run_simulated(scenario())) == ["a", "b", "c"]
    (began, names), (ended, none) = world.reported
    assert (names, none) == (["endpoint kb"], [])
    assert 11 <= began <= 12
    assert 3610 <= ended <= 3617  # a probe every 5 s
    assert world.outages.waited_seconds == pytest.approx(ended - began, abs=0.1)
    assert world.service.statistics.failures == {}


def test_outage_sends_only_probes() -> None:
    world = World(down_between((10, 610)))

    async def scenario() -> list[Any]:
        await world.step("first")
        return await world.later(11, *(str(i) for i in range(50)))

    run_simulated(scenario())

    during = [content for when, content in world.pool.asked if 20 < when < 610]
    assert 600 / 5 / 1.3 < len(during) < 600 / 5 * 1.3
    assert set(during) == {'{"question": "first"}'}  # it was answered before


@pytest.mark.row("D10")
def test_flapping_service_loses_no_call() -> None:
    flaps = [(3 * i + 1.0, 3 * i + 3.0) for i in range(200)]
    world = World(down_between(*flaps))

    async def scenario() -> list[Any]:
        result = await world.step("first")
        for step in range(20):
            result += await world.later(step * 5 + 0.5, *(f"{step}-{i}" for i in range(4)))
        return result

    result = run_simulated(scenario())
    assert len(answers(result)) == 81
    assert len(world.reported) > 4


def test_failing_request_fails_alone_while_service_is_up() -> None:
    world = World(lambda _, content: 500 if "poison" in content else 0.01)

    async def scenario() -> list[Any]:
        return await world.step("tea", "poison", "milk")

    tea, poison, milk = run_simulated(scenario())
    assert answers([tea, milk]) == ["tea", "milk"]
    assert isinstance(poison, CallFailed)
    assert poison.cause is FailureCause.HTTP_STATUS
    assert sum("poison" in content for _, content in world.pool.asked) == 1 + RETRY.retries
    assert world.reported == []
    assert world.service.statistics.failures == {FailureCause.HTTP_STATUS: 1}


def test_rejected_request_triggers_no_probe() -> None:
    world = World(lambda _, content: 400 if "odd" in content else 0.01)

    async def scenario() -> list[Any]:
        return await world.step("odd")

    [odd] = run_simulated(scenario())
    assert isinstance(odd, CallFailed)
    assert len(world.pool.asked) == 1


def test_request_that_repeatedly_crashes_service_fails() -> None:
    fallen, innocent = [-100.0], [f"tea {i}" for i in range(20)]

    def falls(now: float, content: str) -> float | Exception:
        if "poison" in content:
            fallen[0] = now
        return REFUSED if now - fallen[0] < 10 else 0.01

    world = World(falls)

    async def scenario() -> list[Any]:
        await world.step("first")
        return await world.later(1, "poison", *innocent)

    poison, *others = run_simulated(scenario())
    assert isinstance(poison, CallFailed)
    assert answers(others) == innocent
    times = sum("poison" in content for _, content in world.pool.asked)
    assert times <= OUTAGES_BEFORE_SERIAL + MAX_SERIAL_OUTAGES + 1 + RETRY.retries


def test_high_failure_ratio_is_outage_despite_successful_probe() -> None:
    lately: list[float] = []

    def limited(now: float, _: str) -> float | int:
        """Five calls a second."""
        lately[:] = [when for when in lately if when > now - 1]
        if len(lately) >= 5:
            return 429
        lately.append(now)
        return 0.01

    world = World(limited)

    async def scenario() -> list[Any]:
        await world.step("first")
        return await world.later(1, *(f"q{i}" for i in range(40)))

    result = run_simulated(scenario())
    assert world.reported[0][1] == ["endpoint kb"]
    assert [each for each in result if isinstance(each, CallFailed)] == []


def test_hanging_service_is_reported_before_timeout() -> None:
    world = World(lambda now, _: 1e4 if 10 <= now < 900 else 0.01, timeout_seconds=600)

    async def scenario() -> list[Any]:
        await world.step("first")
        return await world.later(11, "a", "b")

    assert answers(run_simulated(scenario())) == ["a", "b"]
    assert world.reported[0] == (pytest.approx(11 + HANG_SECONDS), ["endpoint kb"])
    assert world.causes[0] == "Timeout: no response for 20 s"


def test_slow_service_is_not_down() -> None:
    world = World(lambda *_: 45.0, timeout_seconds=120)

    async def scenario() -> list[Any]:
        world.service._gate.record_latency(45.0)  # type: ignore[union-attr]  # as warming shows
        return await world.step("a", "b")

    assert answers(run_simulated(scenario())) == ["a", "b"]
    assert world.reported == []


def test_outage_is_reported_only_while_step_waits() -> None:
    """Passages fetched ahead may wait for long before anybody needs them."""
    world = World(down_between((10, 100)))

    async def scenario() -> None:
        await world.step("first")
        await asyncio.sleep(10)
        ahead = asyncio.ensure_future(world.ask("ahead"))
        await asyncio.sleep(30)
        assert world.reported == []
        assert world.outages.working_time() == pytest.approx(40, abs=0.1)
        with world.outages.reporting():
            await ahead

    run_simulated(scenario())
    assert world.reported[0] == (pytest.approx(40, abs=0.1), ["endpoint kb"])
    assert world.outages.waited_seconds == pytest.approx(60, abs=7)


def test_close_stops_probes() -> None:
    world = World(down_between((0, 1e9)))

    async def scenario() -> None:
        call = asyncio.ensure_future(world.ask())
        await asyncio.sleep(60)
        call.cancel()
        await world.tasks.close()
        asked = len(world.pool.asked)
        await asyncio.sleep(60)
        assert len(world.pool.asked) == asked

    run_simulated(scenario())
