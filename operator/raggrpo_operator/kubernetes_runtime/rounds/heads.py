"""`Heads`: HTTP clients of the Ray heads of running jobs, one pair per Ray cluster."""

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from raggrpo_operator.http_api import LIMITS, HttpApi, Limits
from raggrpo_operator.progress_client import ProgressClient
from raggrpo_operator.ray_jobs import RayJobs


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """Addresses of a Ray head."""

    dashboard: str
    progress: str


HeadResolver = Callable[[str, str], HeadAddress]
"""(namespace, name of the Ray cluster) → its head's addresses."""


def service_address(dashboard_port: int, progress_port: int) -> HeadResolver:
    """Return a resolver for cluster DNS; it ignores the status, which users may edit."""

    def address(namespace: str, cluster: str) -> HeadAddress:
        host = f"http://{cluster}-head-svc.{namespace}.svc"
        return HeadAddress(f"{host}:{dashboard_port}", f"{host}:{progress_port}")

    return address


@dataclass(frozen=True, slots=True)
class Head:
    """The two APIs of one head."""

    jobs: RayJobs
    progress: ProgressClient


@dataclass(frozen=True, slots=True)
class Heads:
    """All heads, over the connections of one session."""

    address: HeadResolver
    session: aiohttp.ClientSession
    limits: Limits = LIMITS

    def head(self, namespace: str, cluster: str, token: str) -> Head:
        """Return the head of the Ray cluster with this name."""
        where = self.address(namespace, cluster)
        return Head(
            RayJobs(HttpApi(self.session, where.dashboard, token, self.limits)),
            ProgressClient(HttpApi(self.session, where.progress, token, self.limits)),
        )
