from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientSession

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import AttemptRecord, Cause, ClusterStatus, JobStatus
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.http_api import open_session
from raggrpo_operator.kube.client import RAY_CLUSTERS
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey
from raggrpo_operator.kubernetes_runtime.process.installation_keys import read_keys
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.rounds.children import Children
from raggrpo_operator.kubernetes_runtime.rounds.heads import HeadAddress, Heads
from raggrpo_operator.kubernetes_runtime.rounds.runtime import KubernetesRuntime, ReconcilerContext
from raggrpo_operator.kubernetes_runtime.rounds.status_writer import StatusWriter
from raggrpo_operator.kubernetes_runtime.watching.evidence_book import EvidenceBook
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore
from support.builders.jobs import a_job
from support.builders.pods import Manifest, a_pod, a_ray_cluster
from support.fakes.fake_kube import FakeKube

KEY = JobKey("default", "small")
NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


class World:
    """A job whose attempt runs, what the cache shows and what the API server has."""

    def __init__(
        self, folder: Path, session: ClientSession, cached: Manifest, live: Manifest | None
    ) -> None:
        self.kube = FakeKube()
        if live is not None:
            self.kube.put(live)
        self.evidence = EvidenceBook(timedelta(seconds=120))
        objects = ClusterObjects(ray_clusters={KEY: [cached]})
        (folder / "current").write_text("an installation key for tests only")
        keys = read_keys(folder)
        settings = ClusterSettings(
            trainer_image="trainer:test", operator_namespace="ops", token_key_id="k"
        )
        writer = StatusWriter(self.kube, JobStore(objects), lambda: NOW, Pace(5, 10), instance="me")
        self.context = ReconcilerContext(
            self.kube,
            objects,
            Children(self.kube, settings, keys),
            Heads(lambda *_: HeadAddress("http://127.0.0.1:9", "http://127.0.0.1:9"), session),
            self.evidence,
            writer,
            lambda: NOW,
        )

    async def cluster(self) -> ClusterObserved | None:
        body = {"metadata": {"namespace": "default", "name": "small", "uid": "5f1d"}}
        return (await KubernetesRuntime(self.context, body).observe(a_running_job())).cluster


@pytest_asyncio.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with open_session() as opened:
        yield opened


def a_running_job() -> RagGrpoJob:
    record = AttemptRecord(number=1, started=NOW - timedelta(minutes=2))
    status = JobStatus(
        attempt=1, attempts=[record], cluster=ClusterStatus(name="small-c1", number=1)
    )
    return a_job().model_copy(update={"status": status})


def suspended(cluster: Manifest) -> Manifest:
    return cluster | {"spec": {**cluster["spec"], "suspend": True}}


@pytest.mark.parametrize("kind", ["head", "worker"])
async def test_pods_that_a_queue_takes_away_are_no_loss_though_the_cache_is_behind(
    tmp_path: Path, session: ClientSession, kind: str
) -> None:
    gone = a_ray_cluster(head_ready=False, ready_workers=0)
    world = World(tmp_path, session, cached=gone, live=suspended(gone))
    world.evidence.note(KEY, a_pod(kind=kind), NOW, was_deleted=True)

    seen = await world.cluster()

    assert seen is not None
    assert (seen.is_queued, seen.is_lost, seen.cause) == (True, False, None)


async def test_a_head_that_is_lost_without_a_queue_is_a_loss(
    tmp_path: Path, session: ClientSession
) -> None:
    gone = a_ray_cluster(head_ready=False, ready_workers=0)
    world = World(tmp_path, session, cached=gone, live=a_ray_cluster(head_ready=False))
    world.evidence.note(KEY, a_pod(kind="head"), NOW, was_deleted=True)

    seen = await world.cluster()

    assert seen is not None
    assert (seen.is_queued, seen.is_lost, seen.cause) == (False, True, Cause.HEAD_LOST)


async def test_nothing_is_asked_while_nothing_is_lost(
    tmp_path: Path, session: ClientSession
) -> None:
    starting = a_ray_cluster(head_ready=False, ready_workers=0)
    world = World(tmp_path, session, cached=starting, live=a_ray_cluster())

    await world.cluster()

    assert ("get", RAY_CLUSTERS.plural, "small-c1") not in world.kube.calls
