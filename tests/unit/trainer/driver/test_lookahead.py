"""Retrieval runs one step ahead of generation and stops when training ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_api.trainer.history import read_history
from raggrpo_api.trainer.progress import EndpointOutage
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import PromptSource
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.driver.lookahead import Lookahead
from raggrpo_trainer.driver.loop import train
from raggrpo_trainer.driver.saving import TrainState
from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.retained_state import TrainingPosition
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from support.builders.trainer.reports import Published, make_config
from support.fakes.fake_training_loop import (
    EndingStore,
    FakePool,
    FakeRanks,
    StepDone,
    make_components,
)
from support.servers.faulty_server import Received, search_r1, serving

PROMPTS = [f"prompt {number}" for number in range(8)]
FOR_THE_SELF_CHECK = 2
LAST = 4


class Asked:
    """Retriever that records its questions; `so_many` waits for a number of them."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self._changed = asyncio.Condition()

    async def respond(self, received: Received) -> Response:
        async with self._changed:
            self.questions += received.body["queries"]
            self._changed.notify_all()
        return await search_r1()(received)

    async def so_many(self, number: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.questions) >= number)


class HeldPool(FakePool):
    """Engine pool that delays the generations of each step until `may` allows them."""

    def __init__(self, may: Callable[[int], Awaitable[object]]) -> None:
        super().__init__(lambda _: "right")
        self._may, self._step = may, -1

    def submit(self, requests: Sequence[GenerationRequest]) -> list["asyncio.Future[Generation]"]:
        self._step += 1
        done = super().submit(requests)
        if self._step == 0:  # the self-check
            return done
        may = asyncio.ensure_future(self._may(self._step))
        return [asyncio.ensure_future(self._held(may, future)) for future in done]

    async def _held(self, may: Awaitable[object], done: "asyncio.Future[Generation]") -> Generation:
        await may
        return await done


async def trained(
    folder: Path,
    url: str,
    pool: FakePool,
    outages: Outages | None = None,
    steps_off: int = 0,
    ranks: FakeRanks | None = None,
) -> None:
    config = make_config(
        folder,
        {
            "retrieval.mode": "Prompt",
            "retrieval.endpoints": [{"name": "kb", "url": url, "cache": False}],
            "data.trainBatchSize": 1,
            "training.totalSteps": LAST,
            "training.offPolicySteps": steps_off,
            "resources.placement": "Disaggregated" if steps_off else "Colocated",
            "checkpoint.everySteps": LAST,
        },
    )
    reporter = Reporter(config, 1, publish=Published())
    async with (
        RetrievalClient(config.retrieval, {}, outages=outages) as retrieval,
        Rewards(config.reward, config.retrieval) as rewards,
    ):
        given = (config, PROMPTS, reporter, retrieval, rewards, EndingStore())
        with make_components(*given, pool=pool) as components:
            chosen: Any = {
                "outages": outages or components.outages,
                "ranks": ranks or components.ranks,
            }
            with pytest.raises(StepDone):
                await asyncio.wait_for(train(replace(components, **chosen), TrainState()), 30)
    reporter.close()


@pytest.mark.row("G2")
@pytest.mark.parametrize("steps_off", [0, 1])
async def test_next_step_retrieval_overlaps_with_generation(tmp_path: Path, steps_off: int) -> None:
    asked, numbers = Asked(), list[int]()

    async def next_ones_are_asked(step: int) -> None:
        numbers.append(len(asked.questions))
        await asked.so_many(FOR_THE_SELF_CHECK + min(step + 1, LAST))

    async with serving(asked.respond) as kb:
        await trained(tmp_path, kb.url, HeldPool(next_ones_are_asked), steps_off=steps_off)

    assert len(asked.questions) == FOR_THE_SELF_CHECK + LAST
    for step, seen in enumerate(numbers, 1):
        assert seen <= FOR_THE_SELF_CHECK + step + 1  # never further ahead


class SlowRanks(FakeRanks):
    async def step(self, groups: Sequence[Group], after: TrainingPosition) -> list[StepMetrics]:
        await asyncio.sleep(0.3)
        return await super().step(groups, after)


async def test_overlapped_generation_is_counted_once_in_step_seconds(
    tmp_path: Path,
) -> None:
    async with serving(search_r1()) as kb:
        pool = HeldPool(lambda _: asyncio.sleep(0.3))
        await trained(tmp_path, kb.url, pool, steps_off=1, ranks=SlowRanks())
    for record in read_history(tmp_path / "logs"):
        assert sum(record["seconds"].values()) <= record["step_seconds"] + 0.01


class DownForTheSecondStep:
    """Retriever that is down from the second step on, until the outage is reported."""

    def __init__(self) -> None:
        self.answered = 0
        self.is_down, self.is_reported = asyncio.Event(), asyncio.Event()
        self.reported: list[EndpointOutage] = []

    async def respond(self, received: Received) -> Response:
        if self.answered > FOR_THE_SELF_CHECK and not self.is_reported.is_set():
            self.is_down.set()
            return JSONResponse("restarting", 503)
        self.answered += len(received.body["queries"])
        return await search_r1()(received)

    def report(self, outages: Sequence[EndpointOutage]) -> None:
        self.reported += outages
        if outages:
            self.is_reported.set()


@pytest.mark.row("D10")
async def test_outage_during_lookahead_is_reported_only_when_step_waits(
    tmp_path: Path,
) -> None:
    retriever, reported_meanwhile = DownForTheSecondStep(), list[EndpointOutage]()

    async def is_down_for_a_while(step: int) -> None:
        if step == 1:
            await retriever.is_down.wait()
            await asyncio.sleep(0.3)
            reported_meanwhile.extend(retriever.reported)

    async with serving(retriever.respond) as kb:
        await trained(tmp_path, kb.url, HeldPool(is_down_for_a_while), Outages(retriever.report))
    assert reported_meanwhile == []
    assert {outage.name for outage in retriever.reported} == {"endpoint kb"}


class SlowCollector:
    """Collector that prepares the first batch at once, and later batches never."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.dropped: list[int] = []

    async def prepare(self, step: int, *_: object) -> SimpleNamespace:
        self.steps.append(step)
        try:
            if step > 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.dropped.append(step)
            raise
        return SimpleNamespace(step=step)


async def test_lookahead_is_canceled_when_training_ends(tmp_path: Path) -> None:
    config, collector = make_config(tmp_path), SlowCollector()
    prompts = [Prompt(i, "tea", query="tea", answer=("tea",), context="") for i in range(99)]
    source = PromptSource(config, prompts)
    with closing(Lookahead(config, source, cast(Any, collector), 0, Cursor())) as batches:
        first = await batches.next()
        await asyncio.sleep(0)  # the next one starts
    await asyncio.sleep(0)
    assert first.batch.step == 1
    assert (collector.steps, collector.dropped) == ([1, 2], [2])
