"""`StatusWriter`: write statuses, limit the rate of progress writes, and detect conflicts."""

import logging
from collections.abc import Callable
from datetime import datetime

from raggrpo_api import names
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import (
    JobStatus,
    sparse_status,
    status_from_json,
)
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_operator.core.state.conditions import get_condition, set_condition
from raggrpo_operator.core.state.readiness import with_ready
from raggrpo_operator.errors import Conflict, OperatorError
from raggrpo_operator.kube.client import JOBS, KubeClient, Manifest
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.process.rate_limit import RateLimit
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore

from .events import Transition, error_event, other_operator_event, render_event, transitions
from .status_changes import differs_beyond_progress, differs_beyond_reports

log = logging.getLogger(__name__)

REPORT_BURST = 30
"""Status writes of a job in a row that change only what the head of its attempt reports."""
REPORT_SECONDS = 10.0
"""Interval of such writes once REPORT_BURST is exceeded."""
EVENT_BURST = 25
"""Events of a job in a row with the same reason."""
EVENT_SECONDS = 60.0
"""Interval of such Events once EVENT_BURST is exceeded."""


class StatusWriter:
    """Writes statuses and posts Events for their transitions."""

    def __init__(
        self,
        client: KubeClient,
        store: JobStore,
        clock: Callable[[], datetime],
        pace: Pace,
        *,
        instance: str,
    ) -> None:
        self._client, self._store, self._clock = client, store, clock
        self._pace, self._instance = pace, instance
        self._written: dict[JobKey, datetime] = {}
        self._reports = RateLimit(REPORT_BURST, REPORT_SECONDS)
        self._events = RateLimit(EVENT_BURST, EVENT_SECONDS)

    async def write(self, body: Manifest, status: JobStatus) -> Manifest:
        """Write the status to the job as read in `body`; return the job as stored after the write.

        If only progress has changed, the write is deferred until `Pace.status_seconds` have passed
        since the last write. A head whose reports change all the time, such as one that alternates
        between stages, causes a limited number of writes and Events. If the job has changed since
        `body` was read, stores the newer version of the job and raises Conflict.
        """
        key, now, persisted = JobKey.of(body), self._clock(), stored_status(body)
        if self._may_defer(key, persisted, status, now):
            self._store.defer_status(key, body, status)
            return body
        try:
            manifest = _status_manifest(body, sparse_status(status))
            updated = self._store.put(key, await self._client.apply_status(manifest))
        except Conflict:
            self._store.put(key, await self._client.get(JOBS, key.namespace, key.name))
            raise
        self._written[key] = now
        for transition in transitions(persisted, status):
            log.info("%s: %s", transition.reason, transition.note)
            await self._post(body, transition, now)
        return updated

    def _may_defer(self, key: JobKey, old: JobStatus, new: JobStatus, now: datetime) -> bool:
        if not differs_beyond_progress(old, new):
            last_write = self._written.get(key)
            return last_write is not None and (
                (now - last_write).total_seconds() < self._pace.status_seconds(key)
            )
        return not differs_beyond_reports(old, new) and not self._reports.take(key, "", now)

    async def report_error(
        self, body: Manifest, status: JobStatus, reason: ConditionReason, message: str = ""
    ) -> None:
        """Set Reconciling to True for an error, or to False if `reason` is RECONCILED."""
        old = get_condition(status, ConditionType.RECONCILING)
        is_error = reason is not ConditionReason.RECONCILED
        if not is_error and old.status != "True":
            return
        kind, now = ConditionType.RECONCILING, self._clock()
        status = set_condition(status, kind, is_error, reason, message, now)
        status = with_ready(status, now)
        new = get_condition(status, kind)
        if (old.status, old.reason, old.message) != (new.status, new.reason, new.message):
            await self.write(body, status)

    async def report_internal_error(self, body: Manifest, message: str) -> None:
        """Report an internal error by editing the raw status, since parsing it may have failed."""
        kind, now = ConditionType.RECONCILING, self._clock()
        raw = body.get("status") or {}
        dicts = [each for each in raw.get("conditions") or [] if isinstance(each, dict)]
        conditions = {str(each.get("type")): each for each in dicts}
        status = set_condition(
            JobStatus(), kind, True, ConditionReason.INTERNAL_ERROR, message, now
        )
        condition = get_condition(status, kind)
        known = conditions.get(kind, {})
        if (known.get("reason"), known.get("message")) == (condition.reason, condition.message):
            return
        [conditions[kind]] = sparse_status(status)["conditions"]
        changed = {**raw, "conditions": list(conditions.values())}
        self._store.put(
            JobKey.of(body), await self._client.apply_status(_status_manifest(body, changed))
        )
        await self._post(body, error_event(condition), now)

    async def post_other_operator(self, body: Manifest, holder: str) -> None:
        """Post an Event that another operator holds the namespace of the job."""
        await self._post(body, other_operator_event(holder, self._instance), self._clock())

    def remove(self, key: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._written.pop(key, None)
        self._reports.remove(key)
        self._events.remove(key)

    async def _post(self, body: Manifest, transition: Transition, now: datetime) -> None:
        """Post an Event; only log a failure, because the status contains the same information."""
        if not self._events.take(JobKey.of(body), transition.reason, now):
            log.info("omitted an Event: the job has too many with reason %s", transition.reason)
            return
        try:
            await self._client.create(render_event(body, transition, now, self._instance))
        except OperatorError as error:
            log.warning("posting an Event failed: %s", error)


def stored_status(body: Manifest) -> JobStatus:
    """Return the parsed status of a job as stored by the API server."""
    return status_from_json(body.get("status", {}))


def _status_manifest(body: Manifest, status: Manifest) -> Manifest:
    metadata = body["metadata"]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            # With this field, the API server rejects the write if the job has changed since then.
            "resourceVersion": metadata["resourceVersion"],
        },
        "status": status,
    }
