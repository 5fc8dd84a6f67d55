import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import ClusterStatus, JobStatus
from raggrpo_operator.core.lifecycle.actions import DeleteCluster
from raggrpo_operator.core.lifecycle.observed import ClusterObserved, StartObserved
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.kube.client import RAY_CLUSTERS
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey
from raggrpo_operator.kubernetes_runtime.process.installation_keys import (
    InstallationKeys,
    read_keys,
)
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.rounds.children import Children
from raggrpo_operator.kubernetes_runtime.rounds.heads import HeadAddress, Heads
from raggrpo_operator.kubernetes_runtime.rounds.namespace_claims import NamespaceClaims
from raggrpo_operator.kubernetes_runtime.rounds.network_policies import NetworkPolicies
from raggrpo_operator.kubernetes_runtime.rounds.runtime import KubernetesRuntime, ReconcilerContext
from raggrpo_operator.kubernetes_runtime.rounds.status_writer import StatusWriter
from raggrpo_operator.kubernetes_runtime.watching.evidence_store import EvidenceStore
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore
from support.builders.operator.jobs import make_job, make_raw_job
from support.builders.operator.pods import (
    CLUSTER_UID,
    JOB,
    Manifest,
    container,
    make_pod,
    make_ray_cluster,
)
from support.fakes.fake_kube import FakeKube

KEY = JobKey("default", "small")
NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


class OperatorEnvironment:
    """A job with a running attempt, the caches and the objects of the API server."""

    def __init__(
        self,
        folder: Path,
        session: ClientSession,
        cached: Manifest,
        live: Manifest | None,
        head: str = "http://127.0.0.1:9",
    ) -> None:
        self.kube = FakeKube()
        if live is not None:
            self.kube.put(live)
        self.evidence = EvidenceStore(timedelta(seconds=120))
        objects = ClusterObjects(ray_clusters={KEY: [cached]})
        (folder / "current").write_text("an installation key for tests only")
        keys = InstallationKeys(partial(read_keys, folder), "ops/key")
        settings = ClusterSettings(trainer_image="trainer:test", operator_namespace="ops")
        writer = StatusWriter(self.kube, JobStore(objects), lambda: NOW, Pace(5, 10), instance="me")
        children = Children(self.kube, settings, keys)
        self.context = ReconcilerContext(
            self.kube,
            objects,
            children,
            Heads(lambda *_: HeadAddress(head, head), session),
            self.evidence,
            writer,
            lambda: NOW,
            NetworkPolicies(children, objects),
            NamespaceClaims(self.kube, "ops/raggrpo-operator", time.monotonic),
        )

    def runtime(self) -> KubernetesRuntime:
        body = {"metadata": {"namespace": "default", "name": "small", "uid": "5f1d"}}
        return KubernetesRuntime(self.context, body)

    async def cluster(self) -> ClusterObserved | None:
        return (await self.runtime().observe(make_running_job())).cluster


def make_running_job() -> RagGrpoJob:
    record = AttemptRecord(number=1, started=NOW - timedelta(minutes=2))
    status = JobStatus(
        attempt=1, attempts=[record], cluster=ClusterStatus(name="small-c1", number=1)
    )
    return make_job().model_copy(update={"status": status})


def suspended(cluster: Manifest) -> Manifest:
    return cluster | {"spec": {**cluster["spec"], "suspend": True}}


@pytest.mark.parametrize("kind", ["head", "worker"])
async def test_pods_removed_by_queue_are_not_reported_as_lost(
    tmp_path: Path, session: ClientSession, kind: str
) -> None:
    gone = make_ray_cluster(head_ready=False, ready_workers=0)
    environment = OperatorEnvironment(tmp_path, session, cached=gone, live=suspended(gone))
    environment.evidence.record(KEY, make_pod(kind=kind), NOW, was_deleted=True)

    observed = await environment.cluster()

    assert observed is not None
    assert (observed.is_queued, observed.is_lost, observed.cause) == (True, False, None)


async def test_deleted_head_of_unqueued_cluster_is_lost(
    tmp_path: Path, session: ClientSession
) -> None:
    gone = make_ray_cluster(head_ready=False, ready_workers=0)
    environment = OperatorEnvironment(
        tmp_path, session, cached=gone, live=make_ray_cluster(head_ready=False)
    )
    environment.evidence.record(KEY, make_pod(kind="head"), NOW, was_deleted=True)

    observed = await environment.cluster()

    assert observed is not None
    assert (observed.is_queued, observed.is_lost, observed.cause) == (False, True, Cause.HEAD_LOST)


@asynccontextmanager
async def with_a_head(
    folder: Path, session: ClientSession, *, is_submitted: bool
) -> AsyncIterator[OperatorEnvironment]:
    """Yield an environment with a ready cluster, whose head knows the attempt if submitted."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/api/version":
            return web.json_response({"ray_version": "2.61.0"})
        status = 200 if is_submitted else 404
        return web.json_response({"status": "RUNNING"}, status=status)

    app = web.Application()
    app.add_routes([web.get("/{anything:.*}", answer)])
    async with TestServer(app) as server:
        ready = make_ray_cluster()
        environment = OperatorEnvironment(
            folder, session, ready, ready, head=str(server.make_url("")).rstrip("/")
        )
        key_id = environment.context.children.keys.current()[0]
        ready["metadata"]["annotations"][names.ANNOTATION_TOKEN_KEY] = key_id
        yield environment


@pytest.mark.row("B10")
@pytest.mark.parametrize(
    ("old", "is_ready"),
    [
        ([], True),
        ([make_pod(name="old", going=True)], False),
        ([make_pod({"phase": "Failed"}, name="old")], False),
    ],
    ids=["none", "being deleted", "failed"],
)
async def test_cluster_is_not_ready_until_lost_worker_is_deleted(
    tmp_path: Path, session: ClientSession, old: list[Manifest], is_ready: bool
) -> None:
    async with with_a_head(tmp_path, session, is_submitted=False) as environment:
        environment.context.objects.pods = {
            KEY: [make_pod(kind="head", name="head"), make_pod(), *old]
        }

        observed = await environment.cluster()

    assert observed is not None
    assert observed.is_ready == is_ready


@pytest.mark.row("C13")
@pytest.mark.parametrize("is_submitted", [False, True])
async def test_images_are_always_observed_and_ray_version_only_before_submission(
    tmp_path: Path, session: ClientSession, is_submitted: bool
) -> None:
    async with with_a_head(tmp_path, session, is_submitted=is_submitted) as environment:
        status = container()
        status["containerStatuses"][0]["imageID"] = f"trainer@sha256:{'1' * 64}"
        environment.context.objects.pods = {KEY: [make_pod(status, kind="head")]}

        observed = await environment.cluster()

    assert observed is not None
    assert observed.is_ready
    assert observed.image_ids == (f"trainer@sha256:{'1' * 64}",)
    assert observed.ray_version == ("" if is_submitted else "2.61.0")


async def test_api_server_is_not_called_without_pod_loss(
    tmp_path: Path, session: ClientSession
) -> None:
    starting = make_ray_cluster(head_ready=False, ready_workers=0)
    environment = OperatorEnvironment(tmp_path, session, cached=starting, live=make_ray_cluster())

    await environment.cluster()

    assert ("get", RAY_CLUSTERS.plural, "small-c1") not in environment.kube.calls


def make_foreign_cluster(name: str, **labels: str) -> Manifest:
    """Return a RayCluster controlled by the job but not created by the operator."""
    made = make_ray_cluster()
    metadata = made["metadata"] | {"name": name, "uid": f"uid-{name}", "labels": labels}
    return {"kind": "RayCluster", "apiVersion": "ray.io/v1", "metadata": metadata}


@pytest.mark.parametrize(
    "labels",
    [{}, {names.LABEL_CLUSTER: "x"}, {names.LABEL_CLUSTER: "9" * 60}, {names.LABEL_CLUSTER: "-1"}],
    ids=["no labels", "no number", "a huge number", "a negative number"],
)
async def test_foreign_ray_cluster_is_ignored(
    tmp_path: Path, session: ClientSession, labels: dict[str, str]
) -> None:
    starting = make_ray_cluster(head_ready=False, ready_workers=0)
    environment = OperatorEnvironment(tmp_path, session, cached=starting, live=starting)
    environment.context.objects.ray_clusters = {
        KEY: [make_foreign_cluster("a", **labels), starting]
    }

    assert await environment.cluster() == ClusterObserved(1)


async def test_round_drops_losses_of_clusters_that_job_does_not_own(
    tmp_path: Path, session: ClientSession
) -> None:
    starting = make_ray_cluster(head_ready=False, ready_workers=0)
    environment = OperatorEnvironment(tmp_path, session, cached=starting, live=starting)
    theirs = {"kind": "RayCluster", "name": "small-c1", "uid": "made up", "controller": True}
    environment.evidence.record(KEY, make_pod(owner=theirs), NOW, was_deleted=True)
    environment.evidence.record(KEY, make_pod(), NOW, was_deleted=True)

    await environment.cluster()

    assert environment.evidence.losses(KEY, "made up", NOW - timedelta(days=1)) == []
    assert len(environment.evidence.losses(KEY, CLUSTER_UID, NOW - timedelta(days=1))) == 1


async def test_cluster_with_duplicate_number_is_identified_by_name(
    tmp_path: Path, session: ClientSession
) -> None:
    starting = make_ray_cluster(head_ready=False, ready_workers=0)
    twin = make_foreign_cluster("a", **{names.LABEL_CLUSTER: "1"})
    environment = OperatorEnvironment(tmp_path, session, cached=starting, live=starting)
    environment.context.objects.ray_clusters = {KEY: [twin, suspended(starting)]}

    observed = await environment.cluster()

    assert observed is not None
    assert observed.is_queued


async def test_cluster_of_earlier_release_is_adopted_by_name(
    tmp_path: Path, session: ClientSession
) -> None:
    old = make_ray_cluster(head_ready=False)
    unlabelled = old | {"metadata": old["metadata"] | {"labels": {}}}
    for cached in ([old], [unlabelled], []):
        environment = OperatorEnvironment(tmp_path, session, cached=old, live=unlabelled)
        environment.context.objects.ray_clusters = {KEY: cached}
        assert await environment.cluster() == ClusterObserved(1)

        await environment.runtime().perform(make_running_job(), DeleteCluster(1))
        assert environment.kube.named("rayclusters") == []


async def test_live_foreign_cluster_is_neither_adopted_nor_deleted(
    tmp_path: Path, session: ClientSession
) -> None:
    theirs = make_ray_cluster()
    theirs["metadata"]["ownerReferences"] = [JOB | {"controller": False}]
    environment = OperatorEnvironment(tmp_path, session, cached=theirs, live=theirs)

    assert await environment.cluster() is None
    await environment.runtime().perform(make_running_job(), DeleteCluster(1))

    assert environment.kube.named("rayclusters") == ["small-c1"]


STARTS = {"training.startFrom": {"checkpoint": {"jobRef": "other"}}}


async def test_checkpoints_of_job_to_start_from_are_observed(
    tmp_path: Path, session: ClientSession
) -> None:
    environment = OperatorEnvironment(tmp_path, session, make_ray_cluster(), make_ray_cluster())
    job = make_job(STARTS)

    missing = await environment.runtime().observe(job)
    other = make_raw_job({"metadata.name": "other", "spec.checkpoint.path": "/mnt/runs/other"})
    other["metadata"] |= {"namespace": "default", "uid": "uid-other"}
    environment.kube.put(other)
    present = await environment.runtime().observe(job)
    unneeded = await environment.runtime().observe(make_running_job())

    problem = "job other does not exist in namespace default"
    assert missing.start == StartObserved(problem=problem)
    assert present.start == StartObserved(path="/mnt/runs/other")
    assert unneeded.start is None
