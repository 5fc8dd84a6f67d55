"""`Hooks`: the moments of an attempt at which somebody else may step in; by default nobody does."""

from collections.abc import Sequence

from raggrpo_trainer.checkpoint.store import SavePhase
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.ranks.ranks import Ranks


class Hooks:
    """Does nothing; a drill overrides what it needs."""

    def resumes(self) -> bool:
        """Tell whether the attempt continues the newest checkpoint."""
        return True

    def started(self, ranks: Ranks, pool: EnginePool) -> None:
        """Take note of the processes that are up."""

    async def before_step(self, step: int) -> None:
        """Step in before a step begins."""

    def trained_groups(self, step: int, groups: Sequence[Group]) -> list[Group]:  # noqa: ARG002
        """Return the groups to train on."""
        return list(groups)

    def during_save(self, phase: SavePhase, step: int) -> None:
        """Step in at a phase of a save."""
