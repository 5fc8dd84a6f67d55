import asyncio
from dataclasses import dataclass, field

import httpx
import pytest

from raggrpo_operator.errors import NotFound, TransientError
from raggrpo_operator.kube.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Manifest,
)
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_operator.kubernetes_runtime.process.probes import Health, serve_probes
from raggrpo_operator.kubernetes_runtime.rounds import resync
from raggrpo_operator.kubernetes_runtime.rounds.resync import KubeRayAppeared, Resync
from raggrpo_operator.kubernetes_runtime.watching.caches import Caches
from support.builders.operator.jobs import make_raw_job
from support.fakes.fake_kube import FakeKube

KEY = JobKey("default", "small")


@dataclass
class Kube(FakeKube):
    """Client of an API server that may be down, with or without KubeRay."""

    has_kuberay: bool = True
    is_down: bool = False
    calls_while_up: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    async def get_raw(self, path: str) -> Manifest:
        if self.is_down:
            raise TransientError("the API server does not answer")
        self.calls_while_up += 1
        if not self.has_kuberay:
            raise NotFound(path)
        return {"resources": [{"name": "rayclusters"}]}


@dataclass
class OperatorEnvironment:
    """A resync with caches, queue and health."""

    now: float = 0.0
    round_seconds: float = 0.0
    ready: bool = False
    namespaces: tuple[str, ...] = ()
    kube: Kube = field(default_factory=Kube)
    caches: Caches = field(default_factory=lambda: Caches(1))
    changed: list[JobKey] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.health = Health(lambda: self.now, lambda: self.round_seconds, lambda: self.ready)
        self.resync = Resync(
            self.kube,
            self.caches,
            self.changed.append,
            self.health,
            self.metrics,
            self.namespaces,
        )

    def put_job(self) -> Manifest:
        raw = make_raw_job()
        raw["metadata"] = {"name": "small", "namespace": "default"}
        return self.kube.put(raw)

    def problems(self) -> str:
        return "; ".join(self.health.problems())


def test_process_with_recent_heartbeat_is_healthy() -> None:
    environment = OperatorEnvironment()
    environment.now, environment.health.heartbeat = 100.0, 99.0
    assert environment.problems() == ""


def test_blocked_loop_stuck_reconcile_and_stale_caches_are_reported() -> None:
    environment = OperatorEnvironment(round_seconds=601.0)
    environment.now, environment.health.stale_since = 1000.0, 800.0
    assert "event loop was blocked for 999 s" in environment.problems()
    assert "a reconcile has been running for 601 s" in environment.problems()
    assert "stale for 200 s" in environment.problems()


async def test_health_and_readiness_probes_respond_over_http() -> None:
    environment = OperatorEnvironment()
    async with serve_probes(environment.health, environment.metrics.text, 0) as addresses:
        [port] = [port for host, port in addresses if host == "0.0.0.0"]
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        environment.ready, environment.round_seconds = True, 601.0
        assert (await client.get("/readyz")).status_code == 200
        sick = await client.get("/healthz")
        assert (sick.status_code, sick.text) == (500, "a reconcile has been running for 601 s")
        assert "raggrpo_operator_workqueue_depth" in (await client.get("/metrics")).text
        await client.aclose()


async def test_resync_requeues_cached_and_deleted_jobs() -> None:
    environment = OperatorEnvironment()
    environment.put_job()
    await environment.resync.resync()
    assert environment.changed == [], (
        "the caches are not synced yet, and report every job by themselves"
    )

    environment.caches.objects.jobs = {JobKey("default", "gone"): []}
    await environment.resync.resync()
    assert environment.changed == [JobKey("default", "gone")]


async def test_missed_change_marks_caches_stale_until_received() -> None:
    environment = OperatorEnvironment(now=10.0)
    job = environment.put_job()
    await environment.resync.resync()
    environment.now = 200.0
    await environment.resync.resync()
    assert environment.health.stale_since == 10.0

    environment.caches.objects.jobs = {KEY: [job]}
    await environment.resync.resync()
    assert environment.health.stale_since is None


async def test_unsynced_caches_are_not_reported_as_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = OperatorEnvironment()
    job = (
        environment.put_job()
    )  # RayClusters are served when the operator starts; their watch starts later
    problems: list[str] = []

    async def sleep(seconds: float) -> None:
        if environment.now > 1000:
            raise asyncio.CancelledError
        environment.now += seconds
        problems.append(environment.problems())
        environment.caches.objects.jobs = {KEY: [job]}

    monkeypatch.setattr(resync.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await environment.resync.run(300.0)

    assert len(problems) > 3
    assert not any("stale" in problem for problem in problems)


async def test_delayed_changes_of_busy_job_are_not_reported_as_missed() -> None:
    environment = OperatorEnvironment()
    cached_job = environment.put_job()
    for second in range(0, 1000, 100):
        environment.now = float(second)
        environment.caches.objects.jobs = {KEY: [dict(cached_job)]}
        cached_job = environment.kube.put({**cached_job, "metadata": dict(cached_job["metadata"])})
        await environment.resync.resync()
        assert "missed" not in environment.problems()


async def test_missing_kuberay_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    environment = OperatorEnvironment(kube=Kube(has_kuberay=False))
    await environment.resync.resync()
    await environment.resync.resync()
    assert caplog.text.count("install KubeRay") == 1
    for kind in (JOBS, PODS, CONFIG_MAPS, DEPLOYMENTS, SERVICES, NETWORK_POLICIES):
        assert not environment.caches.synced.is_set()
        environment.caches.apply_page(kind.path(""), kind.kind, [], is_first=True, is_last=True)
    assert environment.caches.synced.is_set(), "a list of RayClusters is not required"
    assert b"raggrpo_operator_kuberay_available 0.0" in environment.metrics.text()


async def test_kuberay_is_probed_again_soon_when_api_server_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = OperatorEnvironment(kube=Kube(is_down=True))

    async def sleep(seconds: float) -> None:
        if environment.kube.calls_while_up:
            raise asyncio.CancelledError
        environment.now += seconds
        environment.kube.is_down = False

    monkeypatch.setattr(resync.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await environment.resync.run(300.0)

    assert environment.now < 30


async def test_namespaced_operator_restarts_when_kuberay_appears() -> None:
    environment = OperatorEnvironment(kube=Kube(has_kuberay=False), namespaces=("default",))
    await environment.resync.resync()
    environment.kube.has_kuberay = True
    with pytest.raises(KubeRayAppeared):
        await environment.resync.resync()


async def test_cluster_wide_operator_continues_when_kuberay_appears() -> None:
    environment = OperatorEnvironment(kube=Kube(has_kuberay=False))
    await environment.resync.resync()
    environment.kube.has_kuberay = True
    await environment.resync.resync()
    assert b"raggrpo_operator_kuberay_available 1.0" in environment.metrics.text()


async def test_waiting_jobs_are_requeued_when_kuberay_appears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = OperatorEnvironment(kube=Kube(has_kuberay=False))
    environment.caches.objects.jobs = {KEY: [environment.put_job()]}
    rounds: list[float] = []

    async def sleep(seconds: float) -> None:
        if environment.changed:
            rounds.append(environment.now)
            environment.changed.clear()
        environment.now += seconds
        environment.kube.has_kuberay = environment.now > 60
        if environment.now > 1000:
            raise asyncio.CancelledError

    monkeypatch.setattr(resync.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await environment.resync.run(300.0)

    assert len(rounds) == 5, "no more rounds than resyncs, and one when it came"
    at_first, when_it_came, *_ = rounds
    assert at_first == 0
    assert 60 < when_it_came <= 65
