"""The informer: kopf lists and watches, and reports which job each event is about.

Only `on.event` is used. kopf's other handlers write annotations and finalizers, and its indices
make the events of a list wait for each other, in a time that grows with the square of their number.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import kopf

from raggrpo_api import names
from raggrpo_operator.kube.client import JOBS
from raggrpo_operator.kube.cluster_objects import JobKey, job_key_of
from raggrpo_operator.kubernetes_runtime.process.settings import Settings

from .caches import Caches
from .connection import connect
from .evidence_book import EvidenceBook
from .job_store import JobStore
from .kept import CHILDREN

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
    caches: Caches,
    evidence: EvidenceBook,
    store: JobStore,
    changed: Callable[[JobKey], None],
    clock: Callable[[], datetime],
) -> kopf.OperatorRegistry:
    """Return kopf's handlers, whose connection fills `caches`; they call `changed` for a job.

    What the operator itself wrote last is no news: the round that wrote it has asked for the next.
    """
    made = kopf.OperatorRegistry()

    def tell(body: Mapping[str, Any], *, was_deleted: bool) -> None:
        if body["kind"] == names.KIND:
            if was_deleted or not store.has_written(body):
                changed(JobKey.of(body))
            return
        key = job_key_of(body)
        if body["kind"] == "Pod":
            evidence.note(key, dict(body), clock(), was_deleted=was_deleted)
        changed(key)

    async def on_event(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002
        tell(body, was_deleted=type == "DELETED")

    kopf.on.login(registry=made)(partial(connect, caches, partial(tell, was_deleted=True)))
    for each in (JOBS, *CHILDREN):
        kopf.on.event(each.api_version, each.plural, registry=made)(on_event)
    return made
