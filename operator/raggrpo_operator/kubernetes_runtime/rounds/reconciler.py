"""`Reconciler`: run the rounds of jobs and report their errors in the status."""

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
from raggrpo_operator.core.state.readiness import with_ready
from raggrpo_operator.errors import (
    AccessDenied,
    Conflict,
    KeyMissing,
    KeyNotMounted,
    NameTaken,
    NotFound,
    OperatorError,
    QuotaExceeded,
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

from .namespace_claims import RETRY_SECONDS
from .runtime import KubernetesRuntime, ReconcilerContext
from .status_changes import differs_beyond_progress
from .status_writer import stored_status
from .time_to_live import seconds_until_expiry

log = logging.getLogger(__name__)

MIN_REPORTED_FAILURES = 3
"""Number of consecutive failed rounds after which the status reports a transient error."""
MAX_BUG_TEXT = 256
"""Maximum characters of the text of an unexpected exception in the status."""


class Reconciler:
    """Runs the rounds that the work queue schedules."""

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
        self._failures: dict[JobKey, int] = {}
        self._rejected: set[JobKey] = set()
        self._parsed: dict[JobKey, tuple[str, RagGrpoJob | tuple[Violation, ...]]] = {}

    async def round(self, key: JobKey) -> float | None:
        """Run one round; return the seconds to the next round, or None to wait for an event."""
        with log_context(job=str(key), reconcileID=uuid.uuid4().hex[:12]):
            newest = self._store.newest(key)
            if newest is None:
                self._drop_state(key)
                return None
            if holder := await self._context.claims.holder(key.namespace):
                await self._report_holder(key, newest[0], holder)
                return RETRY_SECONDS
            try:
                return await self._reconcile(key, *newest)
            except OperatorError:
                raise
            except Exception as error:
                self._lateness.record_failure(key)
                await self._report_bug(key, error)
                raise

    async def _reconcile(
        self, key: JobKey, body: Manifest, deferred: JobStatus | None
    ) -> float | None:
        if is_being_deleted(body):
            return None
        job = self._parse(key, body)
        if not isinstance(job, RagGrpoJob):
            await self._reject(body, job)
            return None
        if deferred is not None:
            job = job.model_copy(update={"status": deferred})
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
            await runtime.restore_network_policy(after)
        except OperatorError as error:
            self._lateness.record_failure(key)
            await self._report(key, runtime.body, error)
            self._metrics.jobs.update(key, job, is_failing=True)
            raise
        if runtime.error is not None:
            await self._report(key, runtime.body, runtime.error)
        else:
            self._failures.pop(key, None)
            await self._context.writer.report_error(
                runtime.body, decision.status, ConditionReason.RECONCILED
            )
        self._metrics.jobs.update(key, after, is_failing=runtime.error is not None)
        delay = decision.requeue_after
        self._lateness.record_success(key, delay)
        self._pace.set_busy(key, is_busy=delay is not None)
        if delay is None:
            return seconds_until_expiry(after, now)
        has_changed = decision.actions or differs_beyond_progress(job.status, decision.status)
        return delay if has_changed else max(delay, self._pace.poll_seconds(key))

    def _parse(self, key: JobKey, body: Manifest) -> RagGrpoJob | tuple[Violation, ...]:
        """Return the parsed job or its violations; results are cached by version and by spec."""
        version = body["metadata"]["resourceVersion"]
        cached_version, cached = self._parsed.get(key, ("", ()))
        if cached_version == version:
            return cached
        parsed = _parse(body, cached)
        self._parsed[key] = version, parsed
        return parsed

    async def _reject(self, body: Manifest, violations: tuple[Violation, ...]) -> None:
        """Set Accepted to False with one line per violation."""
        now, old = self._context.clock(), stored_status(body)
        lines = "\n".join(violation.line() for violation in violations)
        status = replace(old, observed_generation=body["metadata"]["generation"])
        status = set_condition(
            status, ConditionType.ACCEPTED, False, violations[0].reason, lines, now
        )
        status = with_ready(status, now)
        status = replace(status, phase=phase_from(status))
        if status != old:
            await self._context.writer.write(body, status)

    async def _report(self, key: JobKey, body: Manifest, error: OperatorError) -> None:
        """Report a persistent error in the status; conflicts are never reported."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        is_persistent = not error.retryable or isinstance(
            error, AccessDenied | NameTaken | KeyMissing
        )
        if isinstance(error, Conflict) or not (is_persistent or failures >= MIN_REPORTED_FAILURES):
            return
        status = stored_status(body)
        try:
            await self._context.writer.report_error(body, status, _reason(error), str(error))
        except OperatorError as write_error:
            log.warning("reporting the error in the status failed: %s", write_error)

    async def _report_bug(self, key: JobKey, error: Exception) -> None:
        """Report an internal error in the status of the job whose round raised it."""
        newest = self._store.newest(key)
        if newest is None:
            return
        try:
            await self._context.writer.report_internal_error(newest[0], _bug_message(error))
        except Exception as write_error:
            log.warning("reporting the internal error in the status failed: %r", write_error)

    async def _remove(self, key: JobKey, body: Manifest) -> None:
        log.info("deleting the job: ttlSecondsAfterFinished has passed")
        uid = body["metadata"]["uid"]
        try:
            await self._context.client.delete(JOBS, key.namespace, key.name, uid)
        except (NotFound, Conflict) as error:
            log.info("the job is already gone: %s", error)

    async def _report_holder(self, key: JobKey, body: Manifest, holder: str) -> None:
        """Post one Event per job; the status is left to the operator that holds the namespace."""
        if key not in self._rejected:
            self._rejected.add(key)
            await self._context.writer.post_other_operator(body, holder)

    def _drop_state(self, key: JobKey) -> None:
        """Drop all in-memory state of a deleted job, whose objects Kubernetes garbage-collects."""
        self._failures.pop(key, None)
        self._rejected.discard(key)
        self._parsed.pop(key, None)
        self._pace.set_busy(key, is_busy=False)
        self._lateness.remove(key)
        self._store.remove(key)
        self._context.evidence.remove(key)
        self._context.writer.remove(key)
        self._context.policies.remove(key)
        self._metrics.jobs.remove(key)


def _parse(
    body: Manifest, previous: RagGrpoJob | tuple[Violation, ...]
) -> RagGrpoJob | tuple[Violation, ...]:
    if isinstance(previous, RagGrpoJob) and _has_same_spec(body, previous.metadata):
        with suppress(ValidationError):  # the status is invalid; parse_job reports it
            return parse_update(previous, body)
    if excess := body.get(TOO_LARGE):
        remedy = "shorten templates, lists, env and free-form JSON"
        return (Violation("spec", Reason.SPEC_TOO_LARGE, excess, remedy),)
    return parse_job(body)


def _has_same_spec(body: Manifest, previous: Metadata) -> bool:
    """Return whether UID and generation are unchanged, which implies an unchanged spec."""
    metadata = body["metadata"]
    return (metadata["uid"], metadata["generation"]) == (previous.uid, previous.generation)


def _bug_message(error: Exception) -> str:
    """Return the error and its innermost frame in this project's code, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = [each for each in frames if "raggrpo_" in each.filename][-1]
    text = " ".join(str(error).split())[:MAX_BUG_TEXT]
    return (
        f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {text}; "
        "this is a bug in the operator; please report it with the operator's log"
    )


def _reason(error: OperatorError) -> ConditionReason:
    match error:
        case QuotaExceeded():
            return ConditionReason.QUOTA_EXCEEDED
        case KeyNotMounted():
            return ConditionReason.INSTALLATION_KEY_CHANGED
        case KeyMissing():
            return ConditionReason.INSTALLATION_KEY_MISSING
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
