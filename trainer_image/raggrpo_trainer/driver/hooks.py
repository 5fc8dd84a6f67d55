"""`Hooks`: methods that an attempt calls where drills inject faults; no-ops by default."""

from collections.abc import Sequence

from raggrpo_trainer.checkpoint.store import SavePhase
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.ranks.ranks import Ranks


class Hooks:
    """Hooks that do nothing; a drill overrides the hooks that it needs."""

    def resumes(self) -> bool:
        """Return whether the attempt resumes from the newest checkpoint."""
        return True

    def started(self, ranks: Ranks, pool: EnginePool) -> None:
        """Run after all ranks and engines have started."""

    async def before_step(self, step: int) -> None:
        """Run before a step."""

    def trained_groups(self, step: int, groups: Sequence[Group]) -> list[Group]:  # noqa: ARG002
        """Return the groups to train on."""
        return list(groups)

    def during_save(self, phase: SavePhase, step: int) -> None:
        """Run when a save has reached a phase."""
