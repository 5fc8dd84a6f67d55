"""`RolloutCollector`: interface that turns prompts into scored groups of rows."""

from collections.abc import Sequence
from typing import Protocol

from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.exchange.groups import Group

from .samples import Batch, Rollouts, Sampling


class RolloutCollector(Protocol):
    """Samples completions for prompts and scores them: `Collector` or `AgentCollector`."""

    async def prepare(
        self,
        step: int,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        swap_passages: bool = False,
    ) -> Batch:
        """Return the samples of a step; may run in parallel with earlier steps."""
        ...

    async def collect(self, batch: Batch) -> Rollouts:
        """Generate and score a prepared batch."""
        ...

    def groups(self, rollouts: Rollouts) -> list[Group]:
        """Return the groups with advantages."""
        ...

    def check_failures(self, rollouts: Rollouts) -> None:
        """Raise TrainerError if more calls failed than allowed."""
        ...
