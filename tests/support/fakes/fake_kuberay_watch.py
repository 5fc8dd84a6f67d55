"""Fake KubeRay and kubelet for many jobs: driven by watches instead of polling."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx

from support.fakes.fake_kuberay import Api, FakeKubeRay, path_of
from support.fakes.fake_ray import FakeRay

AT_ONCE = 16
"""Maximum concurrent calls, similar to the limits of the real components."""


class FakeKubeRayWatch(FakeKubeRay):
    """Creates the pods of each RayCluster once and makes each pod ready once."""

    def __init__(self, api: Api, namespace: str, ray: FakeRay) -> None:
        super().__init__(api, namespace, ray)
        self._free = asyncio.Semaphore(AT_ONCE)
        self._started: set[str] = set()

    async def run(self) -> None:
        """Run until canceled. Raises the first error."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._clusters(group))
            group.create_task(self._pods(group))

    async def _clusters(self, group: asyncio.TaskGroup) -> None:
        path = path_of("ray.io/v1", "rayclusters", self._namespace)
        async for kind, cluster in self._api.watch(path):
            uid = cluster["metadata"]["uid"]
            if kind == "ADDED" and uid not in self._started:
                self._started.add(uid)
                group.create_task(self._limited(self._start_pods(cluster)))

    async def _pods(self, group: asyncio.TaskGroup) -> None:
        async for kind, pod in self._api.watch(path_of("v1", "pods", self._namespace)):
            uid, role = pod["metadata"]["uid"], pod["metadata"]["labels"]["raggrpo.io/role"]
            if kind == "ADDED" and uid not in self._started:
                self._started.add(uid)
                group.create_task(self._limited(self._start(pod, self._result_of(pod, role))))

    async def _limited(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._free:
            try:
                await work
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:  # deleted in the meantime
                    raise
