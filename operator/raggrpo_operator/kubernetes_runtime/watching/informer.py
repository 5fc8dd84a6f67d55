"""The informer: kopf lists and watches; what it reads is taken by the connection into the caches.

kopf's other handlers than `on.event` write annotations and finalizers.
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

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
PAGE = 4
"""Objects read at once: each may have 1.5 MB, which Python makes 40 while it is read."""


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """Return settings with which kopf notices a dead watch and reads few objects at once."""
    made = kopf.OperatorSettings()
    made.watching.inactivity_timeout = 70
    made.watching.server_timeout = 300
    made.watching.connect_timeout = 10
    made.watching.chunk_size = PAGE
    for each in CHILDREN:
        made.watching.label_selectors[each.api_version, each.plural] = OURS
    made.networking.request_timeout = 30
    made.networking.connect_timeout = 5
    made.networking.error_backoffs = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]  # then the pod restarts
    made.process.ultimate_exiting_timeout = 60
    made.peering.standalone = True
    # Scanning for new kinds and namespaces needs rights on the whole cluster.
    made.scanning.disabled = bool(settings.namespaces)
    return made


def registry(caches: Caches) -> kopf.OperatorRegistry:
    """Return what makes kopf list and watch; the connection takes all that it reads."""
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made)(partial(connect, caches))

    async def nothing_is_left(**_: Any) -> None:
        """Stand for the kind: kopf watches those that somebody handles."""

    for each in (JOBS, *CHILDREN):
        kopf.on.event(each.api_version, each.plural, registry=made)(nothing_is_left)
    return made


def listener(
    evidence: EvidenceStore,
    store: JobStore,
    changed: Callable[[JobKey], None],
    clock: Callable[[], datetime],
) -> Callable[[str, Manifest], None]:
    """Return what is told of each event: it notes evidence, and calls `changed` for its job.

    What the operator itself wrote last is no news: the round that wrote it has asked for the next.
    """

    def told(event_type: str, body: Manifest) -> None:
        if body["kind"] == names.KIND:
            if event_type in ("DELETED", "VANISHED") or not store.is_own_write(body):
                changed(JobKey.of(body))
            return
        key = job_key_of(body)
        if body["kind"] == PODS.kind and event_type != "VANISHED":  # nobody knows when
            evidence.record(key, body, clock(), was_deleted=event_type == "DELETED")
        changed(key)

    return told
