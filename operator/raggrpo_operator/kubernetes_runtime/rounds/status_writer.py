"""`StatusWriter`: write statuses, limit the rate of progress writes, and detect conflicts."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from raggrpo_api import names
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import (
    JobStatus,
    ProgressStatus,
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
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore

from .events import error_event, other_operator_event, render_event, transitions

log = logging.getLogger(__name__)


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

    async def write(self, body: Manifest, status: JobStatus) -> Manifest:
        """Write the status to the job as read in `body`; return the job as stored after the write.

        If only progress has changed, the write is deferred until `Pace.status_seconds` have passed
        since the last write. If the job has changed since `body` was read, stores the newer version
        of the job and raises Conflict.
        """
        key = JobKey.of(body)
        now, last_write = self._clock(), self._written.get(key)
        persisted = stored_status(body)
        is_recent = last_write is not None and (
            (now - last_write).total_seconds() < self._pace.status_seconds(key)
        )
        if is_recent and not differs_beyond_progress(persisted, status):
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
            await self._post(render_event(body, transition, now, self._instance))
        return updated

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
        await self._post(render_event(body, error_event(condition), now, self._instance))

    async def post_other_operator(self, body: Manifest, holder: str) -> None:
        """Post an Event that another operator holds the namespace of the job."""
        event = other_operator_event(holder, self._instance)
        await self._post(render_event(body, event, self._clock(), self._instance))

    def remove(self, key: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._written.pop(key, None)

    async def _post(self, event: Manifest) -> None:
        """Post an Event; only log a failure, because the status contains the same information."""
        try:
            await self._client.create(event)
        except OperatorError as error:
            log.warning("posting an Event failed: %s", error)


def stored_status(body: Manifest) -> JobStatus:
    """Return the parsed status of a job as stored by the API server."""
    return status_from_json(body.get("status", {}))


def differs_beyond_progress(one: JobStatus, other: JobStatus) -> bool:
    """Return whether two statuses differ in a field other than those that change with each step."""
    return _without_progress(one) != _without_progress(other)


def _without_progress(status: JobStatus) -> JobStatus:
    state, newest = status.restart_state, status.attempts[:1]
    watch = replace(
        state.watch,
        looked=None,
        step_seen=0,
        still_since=None,
        outage_seconds=0.0,
        reads_since_step=0,
    )
    return replace(
        status,
        progress=ProgressStatus(stage=status.progress.stage),
        restart_state=state.with_group(watch),
        attempts=[
            *(replace(each, to_step=0, waiting_seconds=0) for each in newest),
            *status.attempts[1:],
        ],
    )


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
