"""`Resync`: periodically requeue all jobs and check that the caches are current."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from raggrpo_operator.errors import NotFound, OperatorError
from raggrpo_operator.kube.client import JOBS, RAY_CLUSTERS, KubeClient
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_operator.kubernetes_runtime.process.probes import Health
from raggrpo_operator.kubernetes_runtime.watching.caches import Caches

from .children import NO_KUBERAY

log = logging.getLogger(__name__)

RECHECK_SECONDS = 30.0
"""Maximum seconds between resyncs while a change is missing from the caches."""

KUBERAY_SECONDS = 5.0
"""Seconds between checks for KubeRay while KubeRay is not installed."""


class KubeRayAppeared(Exception):
    """KubeRay was installed after startup; namespaced watches pick up new kinds only at startup."""


class Resync:
    """Compares the caches with the API server, in parallel with the watches."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        requeue: Callable[[JobKey], None],
        health: Health,
        metrics: Metrics,
        namespaces: Sequence[str],
    ) -> None:
        self._client, self._caches, self._requeue = client, caches, requeue
        self._health, self._metrics, self._namespaces = health, metrics, namespaces
        self._has_kuberay: bool | None = None
        self._missed: dict[JobKey, tuple[int, float]] = {}

    async def run(self, seconds: float) -> None:
        """Resync every `seconds`, or more often while a change is missing from the caches."""
        while True:
            try:
                await self.resync()
            except OperatorError as error:
                log.warning("resync failed: %s", error)
            await self._wait(min(seconds, RECHECK_SECONDS) if self._missed else seconds)

    async def _wait(self, seconds: float) -> None:
        """Sleep, or return early once KubeRay is installed."""
        until = self._health.clock() + seconds
        while not self._has_kuberay and self._health.clock() + KUBERAY_SECONDS < until:
            await asyncio.sleep(KUBERAY_SECONDS)
            if await self._check_kuberay():
                return
        await asyncio.sleep(max(0.0, until - self._health.clock()))

    async def resync(self) -> None:
        """Requeue all cached jobs and compare the caches with the API server."""
        await self._check_kuberay()
        live: dict[JobKey, int] = {}
        for namespace in self._namespaces or [""]:
            for job in await self._client.list_metadata(JOBS, namespace):
                live[JobKey.of(job)] = int(job["metadata"]["resourceVersion"])
        self._compare(live)
        for key in list(self._caches.objects.jobs):  # only cached jobs can be reconciled
            self._requeue(key)

    def _compare(self, live: dict[JobKey, int]) -> None:
        """Set `stale_since` to when the caches fell behind the API server, or None if current."""
        now = self._health.clock()
        for key, (version, _) in list(self._missed.items()):
            if key not in live or self._cached_version(key) >= version:
                del self._missed[key]
        for key, version in live.items():
            if self._cached_version(key) < version:
                self._missed.setdefault(key, (version, now))
        since = [first_missed for _, first_missed in self._missed.values()]
        self._health.stale_since = min(since) if since else None

    def _cached_version(self, key: JobKey) -> int:
        job = self._caches.objects.job(key)
        return int(job["metadata"]["resourceVersion"]) if job is not None else 0

    async def _check_kuberay(self) -> bool:
        """Return whether KubeRay is installed.

        Raises KubeRayAppeared if the operator must restart to watch RayClusters.
        """
        try:
            kinds = await self._client.get_raw("/apis/ray.io/v1")
            has_kuberay = any(each["name"] == "rayclusters" for each in kinds["resources"])
        except NotFound:
            has_kuberay = False
        except OperatorError as error:
            log.warning("checking for KubeRay failed: %s", error)
            return False
        self._metrics.kuberay.set(has_kuberay)
        if has_kuberay == self._has_kuberay:
            return has_kuberay
        if not has_kuberay:
            self._caches.mark_unserved(RAY_CLUSTERS.kind)
            log.error("%s. Jobs wait until it is installed.", NO_KUBERAY)
        elif self._has_kuberay is False:
            log.info("KubeRay is installed")
            if self._namespaces:
                raise KubeRayAppeared("KubeRay was installed; restarting to watch RayClusters")
        self._has_kuberay = has_kuberay
        return has_kuberay
