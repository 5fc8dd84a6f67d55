"""A reconciler with one job in its caches and on a fake API server."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from aiohttp import ClientSession

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import ClusterStatus, JobStatus, PreflightStatus, sparse_status
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.lifecycle.before_attempt.preflight import spec_hash
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.state.conditions import set_condition
from raggrpo_operator.kube.client import JOBS, Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey
from raggrpo_operator.kubernetes_runtime.process.installation_keys import (
    InstallationKeys,
    read_keys,
)
from raggrpo_operator.kubernetes_runtime.process.lateness import Lateness
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.rounds.children import Children
from raggrpo_operator.kubernetes_runtime.rounds.heads import HeadAddress, Heads
from raggrpo_operator.kubernetes_runtime.rounds.namespace_claims import NamespaceClaims
from raggrpo_operator.kubernetes_runtime.rounds.network_policies import NetworkPolicies
from raggrpo_operator.kubernetes_runtime.rounds.reconciler import Reconciler
from raggrpo_operator.kubernetes_runtime.rounds.runtime import ReconcilerContext
from raggrpo_operator.kubernetes_runtime.rounds.status_writer import StatusWriter
from raggrpo_operator.kubernetes_runtime.watching.evidence_store import EvidenceStore
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore
from support.builders.operator.jobs import make_job, make_raw_job
from support.builders.operator.pods import make_ray_cluster
from support.fakes.fake_kube import FakeKube

KEY = JobKey("team-a", "small")
UID = "5f1d"
NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)
UNREACHABLE = "http://127.0.0.1:9"


def make_running_status(facts: Facts | None = None, job: RagGrpoJob | None = None) -> Manifest:
    """Return the status of a job whose preflight has passed and whose first attempt runs."""
    status = JobStatus(
        attempt=1,
        attempts=[AttemptRecord(number=1, started=NOW)],
        cluster=ClusterStatus(name="small-c1", number=1),
        preflight=PreflightStatus(spec_hash=spec_hash(job or make_job()), facts=facts or Facts()),
        sizing=size(resolve(job or make_job()).spec, facts),
    )
    status = set_condition(status, ConditionType.PREFLIGHT_PASSED, True, "Passed", "", NOW)
    return sparse_status(status)


@dataclass
class ReconcilerEnvironment:
    """The job, its caches, the fake API server and the reconciler."""

    folder: Path
    session: ClientSession
    status: Manifest | None = None
    heads: str = UNREACHABLE
    kube: FakeKube = field(default_factory=FakeKube)
    metrics: Metrics = field(default_factory=Metrics)
    now: datetime = NOW
    status_seconds: float = 0.0
    """Interval of writes that change only progress."""

    def __post_init__(self) -> None:
        (self.folder / "current").write_text("an installation key for tests only")
        keys, raw = InstallationKeys(partial(read_keys, self.folder), "ops/key"), make_raw_job()
        if self.status is not None:
            raw["status"] = self.status
        raw["metadata"] = {
            "name": KEY.name, "namespace": KEY.namespace, "uid": UID, "generation": 1,
        }  # fmt: skip
        self.key_id, _ = keys.current()
        self.objects = ClusterObjects(jobs={KEY: [self.kube.put(raw)]})
        self.evidence = EvidenceStore(timedelta(seconds=120))
        self.pace = Pace(5, self.status_seconds)
        self.store = JobStore(self.objects)
        settings = ClusterSettings(trainer_image="trainer:test", operator_namespace="ops")
        children = Children(self.kube, settings, keys)
        self.context = ReconcilerContext(
            self.kube,
            self.objects,
            children,
            Heads(lambda *_: HeadAddress(self.heads, self.heads), self.session),
            self.evidence,
            StatusWriter(self.kube, self.store, lambda: self.now, self.pace, instance="me"),
            lambda: self.now,
            NetworkPolicies(children, self.objects),
            NamespaceClaims(self.kube, "ops/raggrpo-operator", time.monotonic),
        )
        self.restart()

    def restart(self) -> None:
        """Restart the operator: reset its in-memory state."""
        lateness = Lateness(lambda: self.now.timestamp())
        self.reconciler = Reconciler(self.context, self.store, self.metrics, self.pace, lateness)

    def stored(self) -> Manifest:
        """Return the job stored on the API server."""
        return self.kube.objects[JOBS.plural, KEY.namespace, KEY.name]

    def show_cluster(self, key_id: str = "") -> Manifest:
        """Return a RayCluster of the job, created with `key_id`, after adding it to the cache."""
        cluster = make_ray_cluster()
        cluster["metadata"] |= {
            "namespace": KEY.namespace,
            "annotations": {names.ANNOTATION_TOKEN_KEY: key_id or self.key_id},
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.KIND,
                    "name": KEY.name,
                    "uid": UID,
                    "controller": True,
                }
            ],
        }
        self.objects.ray_clusters = {KEY: [cluster]}
        return cluster

    def condition(self, kind: str) -> Manifest:
        condition: Manifest
        [condition] = [
            each for each in self.stored()["status"]["conditions"] if each["type"] == kind
        ]
        return condition
