"""Reuse of real ranks by a second driver, with the ranks in many states.

    PYTHONPATH=tests python tests/local/ray/reused_ranks.py FOLDER

Prints one JSON object with the result for each state. FOLDER needs a short path for Ray's sockets.
"""

import asyncio
import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.actors import kill_actor
from raggrpo_trainer.ranks import surviving_ranks
from raggrpo_trainer.ranks.rank_actor import RankActor
from raggrpo_trainer.ranks.ranks import Ranks, rank_name
from raggrpo_trainer.ranks.retained_state import RetainedState, TrainingPosition
from raggrpo_trainer.ranks.surviving_ranks import SurvivingRanks
from raggrpo_trainer.ranks.waiting_marker import waiting_marker
from support.builders.trainer.policies import make_policy_config, uneven_groups, write_model
from support.builders.trainer.reports import make_config, make_step

NUM_RANKS = 2
HELD = TrainingPosition(3, Cursor(0, 12), "key", make_step(3).samples, {"generate": 1.5})


class Cluster:
    """Two ranks and a sequence of drivers that request them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._model = folder, write_model(folder / "model")
        changes = {"resources": {"device": "CPU", "ranks": NUM_RANKS}}
        self._config = make_config(folder, changes)
        self._epoch = 1
        self.reasons: list[str] = []
        """Logged reasons why ranks were not reused, newest last."""

    async def ranks(self) -> Ranks:
        """Create the ranks as the first driver and load the model folder."""
        actors = [
            ray.remote(RankActor)
            .options(name=rank_name(1, rank), lifetime="detached", num_cpus=0)
            .remote(rank, NUM_RANKS, 1, str(self._folder), LogLevel.INFO)
            for rank in range(NUM_RANKS)
        ]
        ranks = Ranks(actors, 1)
        await ranks.build(make_policy_config(self._model))
        await ranks.retain(HELD)
        return ranks

    async def reuse(self, key: str = "key") -> tuple[Ranks, RetainedState]:
        """Return the ranks and their record as the next driver."""
        reused = await self._request(key)
        assert reused is not None, self.reasons
        return reused

    async def rejection(self, key: str = "key") -> str:
        """Request ranks that cannot be reused, and return the reason."""
        assert await self._request(key) is None
        return self.reasons[-1]

    async def _request(self, key: str) -> tuple[Ranks, RetainedState] | None:
        self._epoch += 1
        surviving = SurvivingRanks.find(self._epoch)
        return await surviving.adopt(self._config, self._epoch, self._folder, lambda _: key, 0.0)

    async def ended(self) -> list[str]:
        """End the ranks and return the names of those that remain."""
        await SurvivingRanks.find(self._epoch).kill()
        return [name for name in ray.util.list_named_actors() if name.startswith("rank-")]


def _change_a_parameter(rank: Any) -> None:
    next(rank._policy._model.parameters()).data.mul_(1 + 1e-6)


async def states(cluster: Cluster) -> dict[str, object]:
    results: dict[str, object] = {}
    first = await cluster.ranks()
    before = await first.checksums()
    await first.leave_to_next_driver()
    left = [waiting_marker(info.process.pid) for info in first.infos]
    results["marked as left"] = all(each.exists() for each in left)
    ranks, held = await cluster.reuse()
    results["marked once adopted"] = any(each.exists() for each in left)
    results["held"] = held.position == HELD
    results["same checksum"] = len(before) == 1 and await ranks.checksums() == before
    try:
        await first.step(uneven_groups(), replace(HELD, step=4))
    except TrainerError as error:
        results["driver that was superseded"] = error.exit_code.name
    await ranks.step(uneven_groups(), replace(HELD, step=4))
    results["other checksum after a step"] = await ranks.checksums() != before
    ranks, held = await cluster.reuse()
    record = held.record()
    results["record"] = record is not None and (record.step, *record.seconds) == (
        4,
        "generate",
        "train",
    )

    results["another key"] = await cluster.rejection("other")
    surviving_ranks.RESPONSE_SECONDS = 2.0
    waking = ranks.actors[1].__ray_call__.remote(lambda _: time.sleep(4.0))
    results["one does not answer"] = await cluster.rejection()
    await waking
    surviving_ranks.RESPONSE_SECONDS = 10.0
    ranks, _ = await cluster.reuse()
    await ranks.actors[1].__ray_call__.remote(_change_a_parameter)
    results["another parameter"] = await cluster.rejection()
    await ranks.actors[1].__ray_call__.remote(lambda rank: setattr(rank, "_retained", None))
    results["one is in a step"] = await cluster.rejection()
    await kill_actor(ranks.actors[1], rank_name(1, 1))
    results["one is lost"] = await cluster.rejection()
    results["left over"] = await cluster.ended()
    return results


class Reasons(logging.Handler):
    """Log handler that collects why ranks were not reused."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        self._cluster.reasons.append(record.getMessage())


def main(folder: Path) -> None:
    cluster = Cluster(folder)
    surviving_ranks.log.setLevel(logging.INFO)
    surviving_ranks.log.addHandler(Reasons(cluster))
    ray.init(
        namespace="older-ranks",
        num_cpus=1,
        object_store_memory=80 * 1024**2,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(folder),
    )
    print(json.dumps(asyncio.run(states(cluster))))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
