"""KubeRay and the kubelet for many jobs at once: told by watches, where the tests' player looks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx

from support.fakes.fake_kuberay import Api, FakeKubeRay, path_of
from support.fakes.fake_ray import FakeRay

AT_ONCE = 16
"""Calls under way; the real ones have limits of this order."""


class FakeKubeRayWatch(FakeKubeRay):
    """Makes pods of each RayCluster once, and lets each pod get ready once."""

    def __init__(self, api: Api, namespace: str, ray: FakeRay) -> None:
        super().__init__(api, namespace, ray)
        self._free = asyncio.Semaphore(AT_ONCE)
        self._begun: set[str] = set()

    async def run(self) -> None:
        """Play until cancelled; a mistake of the player ends it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._clusters(group))
            group.create_task(self._pods(group))

    async def _clusters(self, group: asyncio.TaskGroup) -> None:
        path = path_of("ray.io/v1", "rayclusters", self._namespace)
        async for kind, cluster in self._api.watch(path):
            uid = cluster["metadata"]["uid"]
            if kind == "ADDED" and uid not in self._begun:
                self._begun.add(uid)
                group.create_task(self._limited(self._begin(cluster)))

    async def _pods(self, group: asyncio.TaskGroup) -> None:
        async for kind, pod in self._api.watch(path_of("v1", "pods", self._namespace)):
            uid, role = pod["metadata"]["uid"], pod["metadata"]["labels"]["raggrpo.io/role"]
            if kind == "ADDED" and uid not in self._begun:
                self._begun.add(uid)
                group.create_task(self._limited(self._start(pod, role == "preflight")))

    async def _limited(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._free:
            try:
                await work
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:  # it was deleted meanwhile
                    raise
