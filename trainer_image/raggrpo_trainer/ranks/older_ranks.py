"""Ranks that an earlier driver left behind: adopted if they prove what they hold, else ended."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import ray

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.actors import end_actor

from .held import Held
from .rank_actor import RankInfo
from .ranks import Ranks, rank_name

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long ranks may take to answer, besides the step that they may be finishing."""


class _NotHeld(Exception):
    """The ranks hold nothing that can be continued; says why."""


class OlderRanks:
    """All ranks of earlier epochs in this Ray cluster."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    @classmethod
    def find(cls, epoch: int) -> Self:
        """Look for ranks of epochs before this one."""
        names = [name for name in ray.util.list_named_actors() if name.startswith("rank-")]
        return cls([name for name in names if _epoch_of(name) < epoch])

    def is_complete(self, num_ranks: int) -> bool:
        """Return whether all ranks of the newest epoch are there to be asked."""
        epochs = [_epoch_of(name) for name in self._names]
        return epochs.count(max(epochs, default=0)) == num_ranks

    async def adopt(
        self,
        config: TrainerConfig,
        epoch: int,
        log_folder: Path,
        key_of: Callable[[RankInfo], str],
        busy_seconds: float,
    ) -> tuple[Ranks, Held] | None:
        """Return the newest ranks and what they hold, if they prove that it is one state.

        All must hold the same step with the same checksum, made with this configuration's key, and
        the checksum of what is in memory now must be that one. They may be finishing a step, for
        which they are given `busy_seconds` more. None, with the reason in the log, if anything is
        amiss. Raises TrainerError SUPERSEDED if they serve a newer epoch.
        """
        newest = max(map(_epoch_of, self._names))
        names = [rank_name(newest, rank) for rank in range(config.world.num_ranks)]
        try:
            async with asyncio.timeout(PATIENCE_SECONDS + busy_seconds):
                ranks = Ranks([ray.get_actor(name) for name in names], epoch)
                held = await ranks.adopt(log_folder, config.monitoring.log_level)
                first = held[0]
                if first is None or any(each != first for each in held):
                    raise _NotHeld("some were in the middle of a step, or not at the same one")
                if first.position.key != key_of(ranks.infos[0]):
                    raise _NotHeld("they were built with another configuration")
                if await ranks.checksums() != {first.checksum}:
                    raise _NotHeld("what is in their memory is not what they held")
        except (_NotHeld, ValueError, OSError, TrainerError) as error:
            if isinstance(error, TrainerError) and error.exit_code is ExitCode.SUPERSEDED:
                raise
            log.info("the ranks of epoch %d are not continued: %r", newest, error)
            return None
        self._names = [name for name in self._names if name not in names]
        return ranks, first

    async def end(self) -> None:
        """Kill those that were not adopted, and wait until they are gone."""
        for name in self._names:
            try:
                actor = ray.get_actor(name)
            except ValueError:
                continue  # gone already
            await end_actor(actor, name)


def _epoch_of(name: str) -> int:
    return int(name.split("-")[1])
