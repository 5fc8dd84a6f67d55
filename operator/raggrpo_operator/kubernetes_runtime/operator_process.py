"""The operator process: creates its components and runs them until one stops."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import kopf

from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.http_api import open_session
from raggrpo_operator.kube.client import KubeClient, connect
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kube.lease import Lease
from raggrpo_operator.kubernetes_runtime.process.installation_keys import (
    InstallationKeys,
    read_keys,
)
from raggrpo_operator.kubernetes_runtime.process.lateness import Lateness
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.process.probes import Health, serve_probes
from raggrpo_operator.kubernetes_runtime.process.settings import Settings
from raggrpo_operator.kubernetes_runtime.process.work_queue import WorkQueue
from raggrpo_operator.kubernetes_runtime.rounds.children import Children
from raggrpo_operator.kubernetes_runtime.rounds.heads import HeadResolver, Heads, service_resolver
from raggrpo_operator.kubernetes_runtime.rounds.namespace_claims import NamespaceClaims
from raggrpo_operator.kubernetes_runtime.rounds.network_policies import NetworkPolicies
from raggrpo_operator.kubernetes_runtime.rounds.reconciler import Reconciler
from raggrpo_operator.kubernetes_runtime.rounds.resync import Resync
from raggrpo_operator.kubernetes_runtime.rounds.runtime import ReconcilerContext
from raggrpo_operator.kubernetes_runtime.rounds.status_writer import StatusWriter
from raggrpo_operator.kubernetes_runtime.watching.caches import Caches
from raggrpo_operator.kubernetes_runtime.watching.evidence_store import EvidenceStore
from raggrpo_operator.kubernetes_runtime.watching.informer import kopf_settings, listener, registry
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore

log = logging.getLogger(__name__)

WATCHES = "multidimensional multitasker"
"""Name that kopf gives to the task that runs all watches."""
CANCEL_SECONDS = 10.0
"""Seconds to wait for canceled tasks; tasks of kopf may hang after a watch has failed."""


class LeadershipLost(Exception):
    """Another replica may be the leader, so this process must exit immediately."""


class WatchFailed(Exception):
    """A watch has failed, so kopf may hang without watching anything."""


async def run_operator(settings: Settings, head_address: HeadResolver | None = None) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises the error of a component that fails.

    `head_address` resolves the addresses of Ray heads; the default uses the cluster's DNS.
    """
    secret = f"{settings.own_namespace}/{settings.key_secret}"
    keys = InstallationKeys(partial(read_keys, settings.key_folder), secret)
    metrics = Metrics()
    client = await connect(metrics.record_call)
    address = head_address or service_resolver(settings.dashboard_port, settings.progress_port)
    try:
        async with open_session() as session:
            await _Operator(settings, client, keys, Heads(address, session), metrics).run()
    finally:
        await client.close()


class _Operator:
    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        keys: InstallationKeys,
        heads: Heads,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._caches = Caches(len(settings.namespaces) or 1)
        evidence = EvidenceStore(timedelta(seconds=settings.start_grace_seconds))
        store = JobStore(self._caches.objects)
        pace = Pace(settings.poll_seconds, settings.status_seconds)
        writer = StatusWriter(client, store, _now, pace, instance=settings.identity)
        children = Children(client, cluster_settings(settings), keys)
        self._claims = NamespaceClaims(
            client,
            f"{settings.own_namespace}/{settings.lease_name}",
            time.monotonic,
            metrics.rejected_namespaces.set,
        )
        context = ReconcilerContext(
            client,
            self._caches.objects,
            children,
            heads,
            evidence,
            writer,
            _now,
            NetworkPolicies(children, self._caches.objects),
            self._claims,
            reads_nodes=settings.read_nodes,
        )
        reconciler = Reconciler(context, store, metrics, pace, Lateness())
        self._queue: WorkQueue[JobKey] = WorkQueue(
            reconciler.round,
            workers=settings.workers,
            group=lambda key: key.namespace,
            observer=metrics,
        )
        self._caches.on_event = listener(evidence, store, self._queue.add, _now)
        self._metrics.longest_reconcile.set_function(lambda: self._queue.longest_running)
        self._ready = asyncio.Event()
        self._is_standby = settings.leader_election
        self._health = Health(
            time.monotonic,
            lambda: self._queue.longest_running,
            lambda: self._is_standby or self._caches.synced.is_set(),
        )

    async def run(self) -> None:
        settings = self._settings
        stop = asyncio.Event()  # for a standby replica; once leading, kopf handles signals
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with serve_probes(self._health, self._metrics.text, settings.http_port):
            stopped = asyncio.create_task(stop.wait(), name="signal")
            await _run_until_first_ends([stopped], [self._health.run_heartbeat(), self._lead()])

    async def _lead(self) -> None:
        """Run the operator; with leader election, only while this replica is the leader."""
        settings = self._settings
        if not settings.leader_election:
            self._metrics.is_leader.set(1)
            try:
                await self._work([])
            finally:
                await self._claims.release()
            return
        lease = Lease(
            self._client,
            settings.own_namespace,
            settings.lease_name,
            settings.identity,
            clock=time.monotonic,
        )
        await lease.acquire()
        self._is_standby = False
        self._metrics.is_leader.set(1)
        try:
            await self._work([_renew(lease)])
        finally:
            self._metrics.is_leader.set(0)
            with contextlib.suppress(OperatorError):  # the Lease expires anyway
                await lease.release()

    async def _work(self, extra: list[Coroutine[Any, Any, None]]) -> None:
        settings = self._settings
        resync = Resync(
            self._client,
            self._caches,
            self._queue.add,
            self._health,
            self._metrics,
            settings.namespaces,
        )
        coroutines = [*extra, self._rounds(), resync.run(settings.resync_seconds)]
        coroutines.append(self._claims.run())
        coroutines.append(monitor_watches(self._ready))
        tasks = [asyncio.create_task(each) for each in coroutines]
        await asyncio.sleep(0)  # start the tasks first: kopf cancels all later tasks
        informer = kopf.operator(
            registry=registry(self._caches),
            settings=kopf_settings(settings),
            namespaces=settings.namespaces,
            clusterwide=not settings.namespaces,
            ready_flag=self._ready,
        )
        await _run_until_first_ends(tasks, [informer])

    async def _rounds(self) -> None:
        await self._caches.wait_until_synced()
        await self._queue.run()


def cluster_settings(settings: Settings) -> ClusterSettings:
    """Return the settings from which manifests of jobs are rendered."""
    return ClusterSettings(
        trainer_image=settings.trainer_image,
        operator_namespace=settings.own_namespace,
        scrape_namespaces=settings.metrics_namespaces,
        image_pull_policy=settings.trainer_image_pull_policy,
        restrict_egress=settings.restrict_egress,
        api_server=settings.api_server_networks,
        egress=settings.egress,
    )


async def _run_until_first_ends(
    running: list["asyncio.Task[Any]"], coroutines: list[Coroutine[Any, Any, Any]]
) -> None:
    """Run all tasks until one ends, cancel the others, and raise the error of the ended task."""
    tasks = [*running, *(asyncio.create_task(each) for each in coroutines)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
    for task in done:
        task.result()


async def monitor_watches(started: asyncio.Event) -> None:
    """Wait for kopf's watches to start, then monitor them. Raises WatchFailed if one fails."""
    await started.wait()
    watches = [task for task in asyncio.all_tasks() if task.get_name() == WATCHES]
    done, _ = await asyncio.wait(watches)
    if any(not task.cancelled() and task.exception() for task in done):
        raise WatchFailed("a watch has failed: restarting")
    await asyncio.Future()  # the watches ended without an error: kopf is shutting down


async def _renew(lease: Lease) -> None:
    await lease.renew_until_lost()
    raise LeadershipLost("this replica is no longer the leader: exiting")


def _now() -> datetime:
    return datetime.now(UTC)
