"""The informer: kopf's watches fill the caches and report which job each event is about.

Only `on.event` and `index` are used: kopf's other handlers write annotations and finalizers.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import kopf

from raggrpo_api import names
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey, job_key_of
from raggrpo_operator.kubernetes_runtime.process.settings import Settings

from .connection import connect
from .evidence_book import EvidenceBook
from .job_store import JobStore
from .kept import CHILDREN, kept

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
PAGE = 4
"""Objects read at once: each may have 1.5 MB, which Python makes 40 while it is read."""


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """Return settings with which kopf writes nothing and notices a dead watch."""
    made = kopf.OperatorSettings()
    made.persistence.diffbase_storage = _NoComparison()
    made.persistence.finalizer = "raggrpo.io/finalizer"  # unused: no handler here needs one
    made.watching.inactivity_timeout = 70
    made.watching.server_timeout = 300
    made.watching.connect_timeout = 10
    made.watching.chunk_size = PAGE
    made.queueing.idle_timeout = 1  # so long kopf holds the whole of an object that has changed
    for each in CHILDREN:
        made.watching.label_selectors[each.api_version, each.plural] = OURS
    made.networking.request_timeout = 30
    made.networking.connect_timeout = 5
    made.networking.error_backoffs = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]  # then the pod restarts
    made.execution.default_backoff = 15
    made.posting.enabled = False
    made.posting.loggers = False
    made.process.ultimate_exiting_timeout = 60
    made.peering.standalone = True
    # Scanning for new kinds and namespaces needs rights on the whole cluster.
    made.scanning.disabled = bool(settings.namespaces)
    return made


class _NoComparison(kopf.DiffBaseStorage):
    """Keeps kopf from comparing an object with its previous version.

    That would copy every object several times for the benefit of handlers we do not have.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise NotImplementedError("nothing is written into objects")


def registry(
    objects: ClusterObjects,
    evidence: EvidenceBook,
    store: JobStore,
    changed: Callable[[JobKey], None],
    clock: Callable[[], datetime],
) -> kopf.OperatorRegistry:
    """Return kopf's handlers, which fill `objects` and `evidence` and call `changed` for a job.

    What the operator itself wrote last is no news: the round that wrote it has asked for the next.
    """
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made)(connect)

    async def index_job(body: kopf.Body, **_: Any) -> dict[JobKey, Manifest]:
        return {JobKey.of(body): kept(body)}

    async def index_child(body: kopf.Body, **_: Any) -> dict[JobKey, Manifest]:
        return {job_key_of(body): kept(body)}

    async def on_job(body: kopf.Body, type: str | None, **indexes: Any) -> None:  # noqa: A002
        _publish(objects, indexes)
        if type == "DELETED" or not store.has_written(body):
            changed(JobKey.of(body))

    async def on_child(body: kopf.Body, type: str | None, **indexes: Any) -> None:  # noqa: A002
        _publish(objects, indexes)
        key = job_key_of(body)
        if body.get("kind") == "Pod":
            evidence.note(key, kept(body), clock(), was_deleted=type == "DELETED")
        changed(key)

    kopf.index(names.GROUP, names.VERSION, names.PLURAL, registry=made, id="jobs")(index_job)
    kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=made)(on_job)
    for each in CHILDREN:
        kopf.index(each.api_version, each.plural, registry=made, id=each.plural)(index_child)
        kopf.on.event(each.api_version, each.plural, registry=made)(on_child)
    return made


def _publish(objects: ClusterObjects, indexes: dict[str, Any]) -> None:
    """Publish the caches; kopf fills all of them before it reports the first event."""
    objects.jobs = indexes["jobs"]
    objects.ray_clusters = indexes["rayclusters"]
    objects.pods = indexes["pods"]
    objects.config_maps = indexes["configmaps"]
    objects.deployments = indexes["deployments"]
