"""Lookahead: each step's batch is retrieved while the previous step generates and trains.

    retrieve   k+1 ─────▶  k+2 ─────▶
    generate   k ──▶       k+1 ──▶
    train          k ──▶       k+1 ──▶

So a step takes as long as retrieval, or as generation and training together, whichever is
longer.
"""

import asyncio
from dataclasses import dataclass

from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.data.prompts import PromptSource
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.rollout.interface import RolloutCollector
from raggrpo_trainer.rollout.samples import Batch, Sampling
from raggrpo_trainer.sample_failures import source_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's batch with retrieved passages, and the cursor after it."""

    batch: Batch
    cursor: Cursor


class Lookahead:
    """Prepares batches one step ahead of the training loop, starting with the step after `step`."""

    def __init__(
        self,
        config: TrainerConfig,
        prompts: PromptSource,
        collector: RolloutCollector,
        step: int,
        cursor: Cursor,
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._collector = collector
        in_prompts = config.retrieval.mode is RetrievalMode.PROMPT
        self._services = {source_of(e.name) for e in config.retrieval.endpoints if in_prompts}
        """Services that are called only to prepare batches."""
        self._step = step + 1
        self._ahead = asyncio.ensure_future(self._prepare(self._step, cursor))

    def needs(self, step: int, service: str) -> bool:
        """Return whether `step` waits for `service`; False if only a later batch depends on it."""
        return service not in self._services or self._step <= step

    async def next(self) -> Prepared:
        """Return the next step's batch and start to prepare the batch after it."""
        prepared = await self._ahead
        self._step += 1
        if self._step <= self._config.training.total_steps:
            self._ahead = asyncio.ensure_future(self._prepare(self._step, prepared.cursor))
        return prepared

    def close(self) -> None:
        """Cancel the batch that is being prepared."""
        self._ahead.cancel()

    async def _prepare(self, step: int, cursor: Cursor) -> Prepared:
        config = self._config
        sampling = Sampling(config.rollout.n, config.rollout.temperature, config.rollout.top_p)
        size = config.data.train_batch_size
        start = self._prompts.batch_start(step, cursor, size)
        prompts, after = await self._prompts.next_batch(start, size)
        return Prepared(await self._collector.prepare(step, prompts, sampling), after)
