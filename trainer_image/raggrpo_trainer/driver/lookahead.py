"""The batches of the steps to come: each is retrieved while the one before it is generated.

    retrieve   k+1 ─────▶  k+2 ─────▶
    generate   k ──▶       k+1 ──▶
    train          k ──▶       k+1 ──▶

So a step lasts as long as its retrieval or its generation and training, whichever is longer.
"""

import asyncio
from dataclasses import dataclass

from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_trainer.data.prompts import PromptSource
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.samples import Batch, Sampling


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's batch, and the cursor after it."""

    batch: Batch
    cursor: Cursor


class Lookahead:
    """Prepares the batches after a step, one ahead of the one that was asked for last."""

    def __init__(
        self,
        config: TrainerConfig,
        prompts: PromptSource,
        collector: Collector,
        step: int,
        cursor: Cursor,
    ) -> None:
        self._config, self._prompts, self._collector = config, prompts, collector
        self._ahead = asyncio.ensure_future(self._prepared(step + 1, cursor))

    async def next(self) -> Prepared:
        """Return the next step's batch, and have the one after it prepared meanwhile."""
        ready = await self._ahead
        if ready.batch.step < self._config.training.total_steps:
            following = self._prepared(ready.batch.step + 1, ready.cursor)
            self._ahead = asyncio.ensure_future(following)
        return ready

    def close(self) -> None:
        """Drop what is being prepared: nobody will ask for it."""
        self._ahead.cancel()

    async def _prepared(self, step: int, cursor: Cursor) -> Prepared:
        config = self._config
        sampling = Sampling(config.rollout.n, config.rollout.temperature, config.rollout.top_p)
        size = config.data.train_batch_size
        start = self._prompts.start_of(step, cursor, size)
        prompts, after = await self._prompts.next_batch(start, size)
        return Prepared(await self._collector.prepare(step, prompts, sampling), after)
