"""Rollouts of one step with a fake engine and real services and rewards."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import Composer
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.http.json_service import ONE_TRY
from raggrpo_trainer.job_config import endpoint_headers
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.samples import Rollouts, Sampling
from support.fakes.fake_engine_pool import TOKENIZER, FakeEnginePool


@asynccontextmanager
async def make_collector(
    config: TrainerConfig,
    pool: FakeEnginePool,
    env: Mapping[str, str] | None = None,
    outages: Outages | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Collector]:
    """Yield a collector that samples from `pool`."""
    headers = endpoint_headers(config.retrieval, env or {})
    composer = Composer(config, TOKENIZER)
    async with (
        RetrievalClient(config.retrieval, headers, retry=ONE_TRY, outages=outages) as retrieval,
        Rewards(config.reward, config.retrieval, outages=outages) as rewards,
    ):
        engines = cast(EnginePool, pool)
        yield Collector(config, TOKENIZER, composer, engines, retrieval, rewards, clock)
    composer.close()


async def collect_rollouts(
    config: TrainerConfig,
    pool: FakeEnginePool,
    prompts: Sequence[Prompt],
    n: int,
    env: Mapping[str, str] | None = None,
) -> tuple[Collector, Rollouts]:
    """Return the rollouts of one step with `n` samples per prompt, and their collector."""
    async with make_collector(config, pool, env) as collector:
        batch = await collector.prepare(1, prompts, Sampling(n, temperature=1.0, top_p=1.0))
        return collector, await collector.collect(batch)


def make_prompt(index: int, text: str, context: str = "") -> Prompt:
    """Return a prompt whose answer is "right"."""
    return Prompt(index, text, query=text, answer=("right",), context=context)
