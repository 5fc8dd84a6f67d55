"""Reuse ranks whose driver was killed or stopped by a preStop hook, if their state is valid.

`retained_state` defines the state that such ranks retain; `driver.resume` resumes from it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import ray

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.actors import kill_actor

from .rank_actor import RankInfo
from .ranks import Ranks, rank_name
from .retained_state import RetainedState

log = logging.getLogger(__name__)

RESPONSE_SECONDS = 10.0
"""How long ranks may take to respond, in addition to the rest of a step in progress."""


class _NotReusable(Exception):
    """The ranks' state cannot be reused; the message is the reason."""


class SurvivingRanks:
    """All ranks of previous epochs in this Ray cluster."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    @classmethod
    def find(cls, epoch: int) -> Self:
        """Return the ranks of epochs before `epoch`."""
        names = [name for name in ray.util.list_named_actors() if name.startswith("rank-")]
        return cls([name for name in names if _epoch_of(name) < epoch])

    def is_complete(self, num_ranks: int) -> bool:
        """Return whether all ranks of the newest epoch exist."""
        epochs = [_epoch_of(name) for name in self._names]
        return epochs.count(max(epochs, default=0)) == num_ranks

    async def adopt(
        self,
        config: TrainerConfig,
        epoch: int,
        log_folder: Path,
        state_key: Callable[[RankInfo], str],
        busy_seconds: float,
    ) -> tuple[Ranks, RetainedState] | None:
        """Adopt the newest ranks; return them and their state, or None if the state is invalid.

        The state is valid if all ranks retain the same step with the same checksum and the
        `state_key` of this configuration, and if the checksum of their memory is still the same.
        The log has the reason if the state is invalid. Ranks that are finishing a step get
        `busy_seconds` more to respond.

        Raises TrainerError SUPERSEDED if the ranks serve a newer epoch.
        """
        newest = max(map(_epoch_of, self._names))
        names = [rank_name(newest, rank) for rank in range(config.world.num_ranks)]
        try:
            async with asyncio.timeout(RESPONSE_SECONDS + busy_seconds):
                ranks = Ranks([ray.get_actor(name) for name in names], epoch)
                states = await ranks.adopt(log_folder, config.monitoring.log_level)
                first = states[0]
                if first is None or any(state != first for state in states):
                    raise _NotReusable("ranks were in a step or have completed different steps")
                if first.position.key != state_key(ranks.infos[0]):
                    raise _NotReusable("the ranks were built with another configuration")
                if await ranks.checksums() != {first.checksum}:
                    raise _NotReusable("the checksum of their memory has changed")
        except (_NotReusable, ValueError, OSError, TrainerError) as error:
            if isinstance(error, TrainerError) and error.exit_code is ExitCode.SUPERSEDED:
                raise
            log.info("ranks of epoch %d are not reused: %r", newest, error)
            return None
        self._names = [name for name in self._names if name not in names]
        return ranks, first

    async def kill(self) -> None:
        """Kill the ranks that were not adopted and wait until they have exited."""
        for name in self._names:
            try:
                actor = ray.get_actor(name)
            except ValueError:
                continue  # the rank has exited
            await kill_actor(actor, name)


def _epoch_of(name: str) -> int:
    return int(name.split("-")[1])
