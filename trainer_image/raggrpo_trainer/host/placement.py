"""Placement of ranks and engines: one detached placement group, which outlives the driver.

Each bundle of the group corresponds to one pod.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

NAME = "pods"


@dataclass(frozen=True, slots=True)
class Bundles:
    """Each pod's resources, and the index of the pod of each rank and engine."""

    resources: tuple[dict[str, float], ...]
    of_rank: tuple[int, ...]
    of_engine: tuple[int, ...]


def bundles(config: TrainerConfig) -> Bundles:
    """Return the bundles of the job's ranks and engines (pure)."""
    world = config.world
    nodes = config.resources.nodes
    colocated = config.resources.placement == "Colocated"
    of_rank = tuple(i * nodes // world.num_ranks for i in range(world.num_ranks))
    if colocated:
        of_engine = tuple(i * nodes // world.num_engines for i in range(world.num_engines))
    else:
        of_engine = tuple(nodes + i for i in range(world.num_engines))
    resources: list[dict[str, float]] = []
    for pod in range(nodes if colocated else nodes + world.num_engines):
        ranks, engines = of_rank.count(pod), of_engine.count(pod)
        cpu = ranks * world.cpus_per_rank + engines * world.cpus_per_engine
        gpu = ranks * world.gpus_per_rank + engines * world.gpus_per_engine
        resources.append({"CPU": cpu} | ({"GPU": gpu} if gpu else {}))
    return Bundles(tuple(resources), of_rank, of_engine)


class Placement:
    """The job's placement group, and the scheduling strategies of the job's actors."""

    def __init__(self, group: PlacementGroup, shape: Bundles) -> None:
        self._group = group
        self._shape = shape

    @classmethod
    async def obtain(cls, config: TrainerConfig, timeout_seconds: float = 120.0) -> "Placement":
        """Return the existing placement group if its bundles match the job, or else a new one."""
        shape = bundles(config)
        expected = [dict(resources) for resources in shape.resources]
        try:
            group = ray.util.get_placement_group(NAME)
            if [{k: v for k, v in b.items() if v} for b in group.bundle_specs] != expected:
                remove_placement_group(group)
                group = None
        except ValueError:
            group = None  # no group exists yet
        if group is None:
            group = placement_group(
                expected, strategy=_group_strategy(config), name=NAME, lifetime="detached"
            )
        # Ray moves the bundle of a lost pod to the pod that replaces it.
        if not await asyncio.to_thread(group.wait, timeout_seconds):
            raise TrainerError(
                ExitCode.PROGRAM_ERROR,
                f"the Ray cluster cannot place the bundles {expected} within "
                f"{timeout_seconds:g} s; its resources are {ray.cluster_resources()}",
            )
        return cls(group, shape)

    def for_rank(self, rank: int) -> Any:
        """Return the scheduling strategy of a trainer rank."""
        return self._strategy(self._shape.of_rank[rank])

    def for_engine(self, index: int) -> Any:
        """Return the scheduling strategy of an engine."""
        return self._strategy(self._shape.of_engine[index])

    def _strategy(self, bundle: int) -> Any:
        return PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle
        )


def _group_strategy(config: TrainerConfig) -> str:
    """Return the placement strategy. On one machine, all bundles are on one Ray node."""
    if config.resources.nodes > 1:
        return "STRICT_SPREAD"
    return "PACK" if config.resources.placement == "Colocated" else "SPREAD"
