"""`Reconciler`: run one round of one job and report its errors."""

import logging
import traceback
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from raggrpo_api.job import Metadata, RagGrpoJob
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_operator.core.spec.parse import parse_job, parse_update
from raggrpo_operator.core.spec.violation import Reason, Violation
from raggrpo_operator.core.state.conditions import phase_from, set_condition
from raggrpo_operator.errors import (
    AccessDenied,
    Conflict,
    NameTaken,
    NotFound,
    OperatorError,
)
from raggrpo_operator.kube.client import JOBS, Manifest
from raggrpo_operator.kube.cluster_objects import JobKey, is_being_deleted
from raggrpo_operator.kubernetes_runtime.process.json_logs import log_context
from raggrpo_operator.kubernetes_runtime.process.lateness import Lateness
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore
from raggrpo_operator.kubernetes_runtime.watching.trimming import TOO_LARGE
from raggrpo_operator.reconcile import reconcile

from .runtime import KubernetesRuntime, ReconcilerContext
from .status_writer import differs_beyond_progress, stored_status
from .time_to_live import seconds_until_expiry

log = logging.getLogger(__name__)

MIN_REPORTED_FAILURES = 3
"""Consecutive failed rounds after which the status reports the error."""
MAX_BUG_TEXT = 256


class Reconciler:
    """Runs rounds for the work queue."""

    def __init__(
        self,
        context: ReconcilerContext,
        store: JobStore,
        metrics: Metrics,
        pace: Pace,
        lateness: Lateness,
    ) -> None:
        self._context, self._store, self._metrics, self._pace = context, store, metrics, pace
        self._lateness = lateness
        self._failed: dict[JobKey, int] = {}
        self._parsed: dict[JobKey, tuple[str, RagGrpoJob | tuple[Violation, ...]]] = {}

    async def round(self, key: JobKey) -> float | None:
        """Run one round; return the seconds until the next, or None to wait for a watch event."""
        with log_context(job=str(key), reconcileID=uuid.uuid4().hex[:12]):
            newest = self._store.newest(key)
            if newest is None:
                self._drop(key)
                return None
            try:
                return await self._reconcile(key, *newest)
            except OperatorError:
                raise
            except Exception as error:
                self._lateness.record_failure(key)
                await self._report_bug(key, error)
                raise

    async def _reconcile(
        self, key: JobKey, body: Manifest, held_back: JobStatus | None
    ) -> float | None:
        if is_being_deleted(body):
            return None
        job = self._parse(key, body)
        if not isinstance(job, RagGrpoJob):
            await self._reject(body, job)
            return None
        if held_back is not None:
            job = job.model_copy(update={"status": held_back})
        with log_context(attempt=job.status.attempt):
            return await self._round(key, body, job)

    async def _round(self, key: JobKey, body: Manifest, job: RagGrpoJob) -> float | None:
        now = self._context.clock()
        if seconds_until_expiry(job, now) == 0:
            await self._remove(key, body)
            return None
        delay_seconds = self._lateness.of(key)
        runtime = KubernetesRuntime(self._context, body, delay_seconds=delay_seconds)
        try:
            decision = await reconcile(job, runtime, now)
            after = job.model_copy(update={"status": decision.status})
            await runtime.restore_record(after)
        except OperatorError as error:
            self._lateness.record_failure(key)
            await self._report(key, runtime.body, error)
            raise
        if runtime.error is not None:
            await self._report(key, runtime.body, runtime.error)
        else:
            self._failed.pop(key, None)
            await self._context.writer.report_error(
                runtime.body, decision.status, ConditionReason.RECONCILED
            )
        self._metrics.jobs.update(key, after)
        delay = decision.requeue_after
        self._lateness.record_success(key, delay)
        self._pace.set_busy(key, is_busy=delay is not None)
        if delay is None:
            return seconds_until_expiry(after, now)
        moved = decision.actions or differs_beyond_progress(job.status, decision.status)
        return delay if moved else max(delay, self._pace.poll_seconds(key))

    def _parse(self, key: JobKey, body: Manifest) -> RagGrpoJob | tuple[Violation, ...]:
        """Parse each version of the job, and of its spec, only once."""
        version = body["metadata"]["resourceVersion"]
        known_version, known = self._parsed.get(key, ("", ()))
        if known_version == version:
            return known
        parsed = _parsed(body, known)
        self._parsed[key] = version, parsed
        return parsed

    async def _reject(self, body: Manifest, violations: tuple[Violation, ...]) -> None:
        """Report every malformed field in the status; no objects are created."""
        now, old = self._context.clock(), stored_status(body)
        reason, lines = (
            violations[0].reason,
            "\n".join(violation.line() for violation in violations),
        )
        status = replace(old, observed_generation=body["metadata"]["generation"])
        status = set_condition(status, ConditionType.ACCEPTED, False, reason, lines, now)
        status = set_condition(
            status, ConditionType.READY, False, ConditionReason.NOT_READY, "", now
        )
        status = replace(status, phase=phase_from(status))
        if status != old:
            await self._context.writer.write(body, status)

    async def _report(self, key: JobKey, body: Manifest, error: OperatorError) -> None:
        """Report a persistent error in the status; a version conflict is not one."""
        failed = self._failed[key] = self._failed.get(key, 0) + 1
        is_persistent = not error.retryable or isinstance(error, AccessDenied | NameTaken)
        if isinstance(error, Conflict) or not (is_persistent or failed >= MIN_REPORTED_FAILURES):
            return
        status = stored_status(body)
        try:
            await self._context.writer.report_error(body, status, _reason(error), str(error))
        except OperatorError as another:
            log.warning("the error could not be reported in the status: %s", another)

    async def _report_bug(self, key: JobKey, error: Exception) -> None:
        """Report a bug in the operator; other jobs are not affected."""
        newest = self._store.newest(key)
        if newest is None:
            return
        try:
            await self._context.writer.report_internal_error(newest[0], _bug(error))
        except Exception as another:
            log.warning("the internal error could not be reported in the status: %r", another)

    async def _remove(self, key: JobKey, body: Manifest) -> None:
        log.info("deleting the job: ttlSecondsAfterFinished has passed")
        uid = body["metadata"]["uid"]
        try:
            await self._context.client.delete(JOBS, key.namespace, key.name, uid)
        except (NotFound, Conflict) as gone:
            log.info("the job is already gone: %s", gone)

    def _drop(self, key: JobKey) -> None:
        """Drop all state of a deleted job; its objects are deleted with it."""
        self._failed.pop(key, None)
        self._parsed.pop(key, None)
        self._pace.set_busy(key, is_busy=False)
        self._lateness.remove(key)
        self._store.remove(key)
        self._context.evidence.remove(key)
        self._context.writer.remove(key)
        self._metrics.jobs.remove(key)


def _parsed(
    body: Manifest, earlier: RagGrpoJob | tuple[Violation, ...]
) -> RagGrpoJob | tuple[Violation, ...]:
    if isinstance(earlier, RagGrpoJob) and _has_spec_of(body, earlier.metadata):
        with suppress(ValidationError):  # in the status; parse_job reports it
            return parse_update(earlier, body)
    if excess := body.get(TOO_LARGE):
        remedy = "shorten templates, lists, env and free JSON"
        return (Violation("spec", Reason.SPEC_TOO_LARGE, excess, remedy),)
    return parse_job(body)


def _has_spec_of(body: Manifest, earlier: Metadata) -> bool:
    """Return whether the generation is the same, so the spec is unchanged."""
    metadata = body["metadata"]
    return (metadata["uid"], metadata["generation"]) == (earlier.uid, earlier.generation)


def _bug(error: Exception) -> str:
    """Return the error and its innermost frame in this project's code, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = [each for each in frames if "raggrpo_" in each.filename][-1]
    text = " ".join(str(error).split())[:MAX_BUG_TEXT]
    return (
        f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {text}; "
        "this is a bug in the operator, please report it with the operator's log"
    )


def _reason(error: OperatorError) -> ConditionReason:
    match error:
        case AccessDenied():
            return ConditionReason.ACCESS_DENIED
        case NameTaken():
            return ConditionReason.NAME_CONFLICT
        case NotFound():
            return ConditionReason.NOT_FOUND
        case _:
            is_transient = error.retryable
            return (
                ConditionReason.CLUSTER_ERROR if is_transient else ConditionReason.REQUEST_REJECTED
            )
