"""`Heads`: HTTP clients of Ray heads, for the Jobs API and for the progress server."""

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from raggrpo_api.names import PROGRESS_PORT
from raggrpo_api.trainer.staging import StagingProgress
from raggrpo_operator.http_api import LIMITS, HttpApi, Limits
from raggrpo_operator.progress_client import ProgressClient, read_progress
from raggrpo_operator.ray_jobs import RayJobs


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """Base URLs of a Ray head's dashboard and progress server."""

    dashboard: str
    progress: str


HeadResolver = Callable[[str, str], HeadAddress]
"""(namespace, RayCluster name) → addresses of the cluster's head."""


def service_resolver(dashboard_port: int, progress_port: int) -> HeadResolver:
    """Return a resolver that uses cluster DNS.

    The head address in the status of the RayCluster is not used, because users may edit it.
    """

    def resolve(namespace: str, cluster: str) -> HeadAddress:
        host = f"http://{cluster}-head-svc.{namespace}.svc"
        return HeadAddress(f"{host}:{dashboard_port}", f"{host}:{progress_port}")

    return resolve


@dataclass(frozen=True, slots=True)
class Head:
    """HTTP clients of one Ray head."""

    jobs: RayJobs
    progress: ProgressClient


@dataclass(frozen=True, slots=True)
class Heads:
    """Factory of head clients that share one HTTP session."""

    resolve: HeadResolver
    session: aiohttp.ClientSession
    limits: Limits = LIMITS

    def head(self, namespace: str, cluster: str, token: str) -> Head:
        """Return the clients of a Ray cluster's head."""
        address = self.resolve(namespace, cluster)
        return Head(
            RayJobs(HttpApi(self.session, address.dashboard, token, self.limits)),
            ProgressClient(HttpApi(self.session, address.progress, token, self.limits)),
        )

    async def transfer_progress(self, host: str) -> StagingProgress | None:
        """Return the progress of a staging or push pod, or None if it cannot be read."""
        api = HttpApi(self.session, f"http://{host}:{PROGRESS_PORT}", limits=self.limits)
        return await read_progress(api, StagingProgress)
