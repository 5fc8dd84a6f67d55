"""Fakes for the training loop without Ray: a scripted engine pool and ranks without a model."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.checkpoint.backup_thread import BackupThread
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import Composer, PromptSource
from raggrpo_trainer.driver.hooks import Hooks
from raggrpo_trainer.driver.loop import Components
from raggrpo_trainer.driver.saving import Saver
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.retained_state import TrainingPosition
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.collect import Collector
from support.builders.trainer.reports import make_step

from .fake_engine_pool import TOKENIZER, FakeEnginePool


class FakePool(FakeEnginePool):
    replacements: Sequence[str] = ()

    async def sleep(self) -> None: ...

    async def load_weights(self, *_: object) -> None: ...


class StepDone(Exception):
    """Raised when training reaches a save, where these tests stop."""


class EndingStore:
    """Checkpoint store that raises StepDone instead of saving."""

    newest = None

    def save(self, *_: object, **__: object) -> None:
        raise StepDone


class FakeRanks:
    infos = (SimpleNamespace(precision="FP32"),)
    position: TrainingPosition | None = None
    """Position after the last completed step."""

    async def send_weights(self, version: int, backend: object) -> None: ...

    async def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        return [list(done.rollout_logprobs) for group in groups for done in group.completions]

    async def plain_logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        return await self.logprobs(groups)

    async def step(self, groups: Sequence[Group], after: TrainingPosition) -> list[StepMetrics]:
        self.position = after
        return [make_step(after.step).trained]

    async def completed(self) -> TrainingPosition | None:
        return self.position

    def save(self, folder: Path) -> dict[str, str]:
        (folder / "shard").write_text("x")
        return {}

    def export(self, folder: Path) -> None:
        (folder / "model").write_text("x")


@contextmanager
def make_components(
    config: TrainerConfig,
    prompts: Sequence[str],
    reporter: Reporter,
    retrieval: RetrievalClient,
    rewards: Rewards,
    store: Any,
    validator: Any = None,
    pool: FakeEnginePool | None = None,
    ranks: FakeRanks | None = None,
) -> Iterator[Components]:
    """Yield the arguments of `train`. The engine always generates the correct answer, "right"."""
    composer = Composer(config, TOKENIZER)
    engines = cast(Any, pool or FakePool(lambda _: "right"))
    data = [
        Prompt(index, text, query=text, answer=("right",), context="")
        for index, text in enumerate(prompts)
    ]
    ranks = cast(Any, ranks or FakeRanks())
    backups = BackupThread(store)
    yield Components(
        config=config,
        prompts=PromptSource(config, data, composer),
        collector=Collector(config, TOKENIZER, composer, engines, retrieval, rewards),
        validator=validator,
        pool=engines,
        ranks=ranks,
        retrieval=retrieval,
        store=store,
        saver=Saver(config, store, ranks, reporter, backups, {}),
        backups=backups,
        reporter=reporter,
        hooks=Hooks(),
        stop=asyncio.Event(),
        key="",
        outages=Outages(reporter.report_outages),
    )
    composer.close()
