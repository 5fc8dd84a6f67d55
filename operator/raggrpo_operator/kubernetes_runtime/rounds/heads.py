"""`Heads`: HTTP clients of the Ray heads of running jobs, one pair per Ray cluster."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.progress_client import ProgressClient
from raggrpo_operator.ray_jobs import RayJobs


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """Where a Ray head listens."""

    dashboard: str
    progress: str


HeadResolver = Callable[[str, str], HeadAddress]
"""(namespace, name of the Ray cluster) → its head's addresses."""


def service_address(dashboard_port: int, progress_port: int) -> HeadResolver:
    """Return the resolver for a cluster's own DNS.

    The name is built here and never read from a status, which others may write.
    """

    def address(namespace: str, cluster: str) -> HeadAddress:
        host = f"http://{cluster}-head-svc.{namespace}.svc"
        return HeadAddress(f"{host}:{dashboard_port}", f"{host}:{progress_port}")

    return address


@dataclass(frozen=True, slots=True)
class Head:
    """The two APIs of one head."""

    jobs: RayJobs
    progress: ProgressClient

    async def close(self) -> None:
        """Close its connections."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.jobs.close)
            stack.push_async_callback(self.progress.close)


class SharedTransport(httpx.AsyncHTTPTransport):
    """Connections of all clients; closing one of these closes nothing.

    A transport of its own would cost each client 25 ms, certificates that it never needs, and
    connections that stay open: with a thousand jobs more than a process may have.
    """

    async def aclose(self) -> None:
        """Leave the connections to the others."""

    async def close(self) -> None:
        """Close all connections."""
        await super().aclose()


class Heads:
    """Keeps the clients between rounds."""

    def __init__(self, address: HeadResolver) -> None:
        self._address, self._transport = address, SharedTransport(trust_env=False)
        self._heads: dict[tuple[JobKey, str], Head] = {}

    def head(self, key: JobKey, cluster: str, uid: str, token: str) -> Head:
        """Return the head of a job's Ray cluster with this name and uid."""
        if (key, uid) not in self._heads:
            where = self._address(key.namespace, cluster)
            self._heads[key, uid] = Head(
                RayJobs(where.dashboard, token, self._transport),
                ProgressClient(where.progress, token, self._transport),
            )
        return self._heads[key, uid]

    async def forget(self, key: JobKey) -> None:
        """Close the connections to the clusters of a job."""
        for known in [each for each in self._heads if each[0] == key]:
            await self._heads.pop(known).close()

    async def close(self) -> None:
        """Close all connections."""
        for key, _ in list(self._heads):
            await self.forget(key)
        await self._transport.close()
