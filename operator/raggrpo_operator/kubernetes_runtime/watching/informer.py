"""The informer: kopf lists and watches objects, and its connection fills the caches.

Only `on.event` handlers are used, because other handlers of kopf write annotations and finalizers.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import kopf

from raggrpo_api import names
from raggrpo_operator.kube.client import JOBS, PODS, Manifest
from raggrpo_operator.kube.cluster_objects import JobKey, job_key_of
from raggrpo_operator.kubernetes_runtime.process.settings import Settings

from .caches import Caches
from .connection import connect
from .evidence_store import EvidenceStore
from .job_store import JobStore
from .trimming import CHILDREN

MANAGED_SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
PAGE_SIZE = 4
"""Objects per page of a list; 1.5 MB of JSON, the maximum object, take 40 MB in Python."""


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """Return the settings with which kopf detects dead watches and reads small pages."""
    options = kopf.OperatorSettings()
    options.watching.inactivity_timeout = 70
    options.watching.server_timeout = 300
    options.watching.connect_timeout = 10
    options.watching.chunk_size = PAGE_SIZE
    for each in CHILDREN:
        options.watching.label_selectors[each.api_version, each.plural] = MANAGED_SELECTOR
    options.networking.request_timeout = 30
    options.networking.connect_timeout = 5
    options.networking.error_backoffs = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]  # then the pod restarts
    options.process.ultimate_exiting_timeout = 60
    options.peering.standalone = True
    # Scanning for new kinds and namespaces needs permissions on the whole cluster.
    options.scanning.disabled = bool(settings.namespaces)
    return options


def registry(caches: Caches) -> kopf.OperatorRegistry:
    """Return a registry with which kopf lists and watches all kinds through `connect`."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(partial(connect, caches))

    async def ignore(**_: Any) -> None:
        """Do nothing; a kind needs a handler for kopf to watch it."""

    for each in (JOBS, *CHILDREN):
        kopf.on.event(each.api_version, each.plural, registry=handlers)(ignore)
    return handlers


def listener(
    evidence: EvidenceStore,
    store: JobStore,
    changed: Callable[[JobKey], None],
    clock: Callable[[], datetime],
) -> Callable[[str, Manifest], None]:
    """Return a listener that records evidence and calls `changed` with the job of each event.

    It ignores events of the operator's own status writes, because the round requeues the job.
    """

    def on_event(event_type: str, body: Manifest) -> None:
        if body["kind"] == names.KIND:
            if event_type in ("DELETED", "VANISHED") or not store.is_own_write(body):
                changed(JobKey.of(body))
            return
        key = job_key_of(body)
        if body["kind"] == PODS.kind and event_type != "VANISHED":  # VANISHED has no time
            evidence.record(key, body, clock(), was_deleted=event_type == "DELETED")
        changed(key)

    return on_event
