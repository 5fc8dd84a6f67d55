"""The fake runtime with failing calls, lost responses, crashes, stale views and user edits.

Invariants that must hold under any of these faults are asserted here, by independent counts.
"""

import re
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, status_to_json
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.core.lifecycle.actions import (
    Action,
    CreateCluster,
    StartPreflight,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.after_attempt.policies import POLICIES
from raggrpo_operator.core.lifecycle.observed import ClusterObserved, Observed, PreflightObserved
from raggrpo_operator.core.state.conditions import is_true
from raggrpo_operator.errors import Conflict, OperatorError, TransientError
from raggrpo_operator.reconcile import reconcile
from support.fakes.fake_runtime import Attempt, Crash, make_scenario_job
from support.fakes.fake_service_outage import SERVICE_DOWN_RESULT, FakeServiceOutage

MAX_CALLS = 5
"""Maximum number of API calls per round, including the status write."""
ROUNDS_TO_SETTLE = 12
"""Number of rounds with a frozen clock within which status writes must stop."""
TAKEOVER_ROUNDS = 3
MAX_VIEWS = 4
SERVICE_DOWN = "service down"
"""Outcome of a preflight while the service is down."""

T = TypeVar("T")


class CallFault(StrEnum):
    """Fault of one API call of the operator."""

    NONE = "none"
    REJECTED = "rejected"
    """HTTP 429 or 500: the call had no effect."""
    RESPONSE_LOST = "response lost"
    """The call took effect, but the caller gets a timeout."""
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    TAKEN_OVER = "taken over"
    """Another replica took over and ran rounds before the call."""


def run_synchronously(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the coroutine was suspended")


@dataclass
class AdversarialRuntime(FakeServiceOutage):
    """Fake runtime with faults; also stores the job, like the API server."""

    job: RagGrpoJob = field(default_factory=make_scenario_job)
    call_faults: list[CallFault] = field(default_factory=list)
    """Faults of the next calls; further calls succeed."""
    views: list[tuple[int, RagGrpoJob]] = field(default_factory=list)
    """Recent versions of the job, newest last."""
    service_is_down: bool = False
    next_queue: str = ""
    """Why the queue holds the pods of the next cluster, or ""."""
    is_never_ready: bool = False
    pod_cause: Cause | None = None
    """Cause reported by the pods of the cluster."""
    shows_stale_cluster: bool = False
    shows_stale_progress: bool = False
    version: int = 0
    calls: int = 0
    rounds_started: int = 0
    takeovers: int = 0
    writes: int = 0
    submissions: int = 0
    """Attempts since the last new checkpoint or user request."""
    uncounted: int = 0
    """Attempts since then that do not count against the budget."""
    budget: int = 0
    best_saved: int = 0
    preempted: set[int] = field(default_factory=set)
    """Attempts that were running when the operator observed their preemption."""
    _read_version: int = 0
    _was_taken_over: bool = False
    _old_cluster: int = 0
    _old_progress: Progress | None = None

    def __post_init__(self) -> None:
        self.store(self.job)

    # Actions of users

    def store(self, job: RagGrpoJob) -> None:
        """Store a new version of the job, serialized and parsed as by the API server."""
        text = job.model_dump_json(by_alias=True, exclude_unset=True)
        self.job = RagGrpoJob.model_validate_json(text)
        self.version += 1
        self.views = [*self.views, (self.version, self.job)][-MAX_VIEWS:]
        self.budget = max(self.budget, self.job.spec.recovery.max_restarts)

    def edit(self, changes: dict[str, Any]) -> None:
        """Replace the spec."""
        generation = self.job.metadata.generation + 1
        metadata = self.job.metadata.model_copy(update={"generation": generation})
        spec = make_scenario_job(changes).spec
        self.store(self.job.model_copy(update={"spec": spec, "metadata": metadata}))

    def annotate(self, retry: str) -> None:
        """Set the retry annotation."""
        metadata = self.job.metadata.model_copy(update={"annotations": {ANNOTATION_RETRY: retry}})
        self.store(self.job.model_copy(update={"metadata": metadata}))

    def delete(self) -> None:
        """Delete the job; its objects are deleted first."""
        stamp = {"deletion_timestamp": self.now.isoformat()}
        metadata = self.job.metadata.model_copy(update=stamp)
        self.store(self.job.model_copy(update={"metadata": metadata}))
        self.delete_cluster()
        self._preflight = None

    def delete_cluster(self) -> None:
        """Delete the cluster without the operator."""
        self.restart_head()
        self.preempted.clear()
        self._cluster = self._lost = self._successor = None

    def restart_head(self) -> None:
        """Restart the head in place; its submissions are lost."""
        self._uncount_unobserved()
        self.attempt = None

    def preempt(self) -> None:
        self._uncount_unobserved()
        super().preempt()

    def _uncount_unobserved(self) -> None:
        """Do not count an attempt that the operator has not observed, because it is resubmitted."""
        record = next(iter(self.job.status.attempts), None)
        if self.attempt is not None and record is not None and not record.started:
            self.uncounted += self.attempt.number == record.number

    def admit(self) -> None:
        self.preempted.clear()  # an operator that missed the preemption observes a restarted head
        super().admit()

    def lose_head(self, *what: Any, **more: Any) -> None:
        self.preempted.clear()
        super().lose_head(*what, **more)

    def reset_budget(self) -> None:
        """Reset the expected restart budget after a user request."""
        self.submissions = self.uncounted = 0

    def move_clock(self, by: timedelta) -> None:
        """Move the operator's clock without changing durations in the environment."""
        self.now += by
        self._looked += by
        if self.attempt is not None:
            self.attempt.started += by
            if self.attempt.stopping is not None:
                self.attempt.stopping += by
        if self._cluster is not None:
            self._cluster = (self._cluster[0], self._cluster[1] + by)
        self._lost_at += by
        if self._successor is not None:
            self._successor = (self._successor[0], self._successor[1] + by)

    @property
    def is_down(self) -> bool:
        return self.service_is_down

    @property
    def has_cluster(self) -> bool:
        """Whether a Ray cluster exists, even if it is lost."""
        return self._cluster is not None

    @property
    def has_running_attempt(self) -> bool:
        """Whether a driver runs."""
        return self.attempt is not None and self.attempt.is_alive

    @property
    def running_attempt(self) -> Attempt:
        """The running driver."""
        assert self.attempt is not None
        return self.attempt

    @property
    def is_finished(self) -> bool:
        """Whether the stored status is Complete or Failed."""
        status = self.job.status
        return is_true(status, ConditionType.COMPLETE) or is_true(status, ConditionType.FAILED)

    @property
    def is_deleted(self) -> bool:
        """Whether the job is being deleted."""
        return bool(self.job.metadata.deletion_timestamp)

    # Actions of the operator

    def round(self, *, age: int = 0) -> float | None:
        """Run one round on the job as of `age` versions ago; return the requeue delay (seconds)."""
        self._read_version, job = self.views[max(0, len(self.views) - 1 - age)]
        self.rounds_started += 1
        self.calls, self._was_taken_over, performed_before = 0, False, len(self.performed)
        try:
            decision = run_synchronously(reconcile(job, self, self.now))
        except (Crash, OperatorError):
            self.call_faults.clear()
            return 1.0
        finally:
            assert self.calls <= MAX_CALLS, self.performed[performed_before:]
        return decision.requeue_after

    def run_until_quiet(self, rounds: int) -> bool:
        """Run up to `rounds` due rounds; return whether another round is due."""
        for _ in range(rounds):
            if (delay := self.round()) is None:
                return False
            self.now += timedelta(seconds=max(1.0, delay))
        return True

    def assert_settles(self) -> None:
        """Check that repeated rounds with a frozen clock stop writing the status."""
        silent = 0
        for _ in range(ROUNDS_TO_SETTLE):
            written = self.writes
            self.round()
            silent = silent + 1 if self.writes == written else 0
            if silent == 2:
                return
        one, two = (status_to_json(status) for status in self.statuses[-2:])
        changes = [(key, one[key], two[key]) for key in one if one[key] != two[key]]
        raise AssertionError(f"status writes do not stop: {changes}")

    async def observe(self, job: RagGrpoJob) -> Observed:
        seen = await super().observe(job)
        self._record_saves()
        cluster = seen.cluster
        if self.shows_stale_cluster and self._old_cluster:  # in the cache, but unresponsive
            self.preempted.clear()  # the stale view shows the cluster before its preemption
            old = ClusterObserved(self._old_cluster)
            return replace(seen, cluster=old, attempt=None, progress=None, is_head_reachable=False)
        if cluster is not None:
            self._old_cluster = cluster.number
        self._record_preemption(job.status, seen)
        if cluster is not None and not cluster.is_lost and self.pod_cause is not None:
            cluster = replace(cluster, cause=self.pod_cause, message="pod message")
        if cluster is not None and self.is_never_ready:
            cluster = replace(cluster, is_ready=False)
        progress = self._old_progress if self.shows_stale_progress else seen.progress
        self._old_progress = progress
        return replace(seen, cluster=cluster, progress=progress)

    def _observed_preflight(self) -> PreflightObserved | None:
        seen = super()._observed_preflight()
        if seen is None or seen.result is None or self._preflight is None:
            return seen
        return (
            replace(seen, result=SERVICE_DOWN_RESULT)
            if self._preflight[2] == SERVICE_DOWN
            else seen
        )

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        fault = self._start_call()
        is_current = self._read_version == self.version
        if isinstance(action, CreateCluster | SubmitAttempt):
            assert is_current or self._was_taken_over, "action on a stale view"
        if isinstance(action, CreateCluster | SubmitAttempt | StartPreflight) and is_current:
            assert not self.is_finished, f"{action} for a finished job"
            assert not self.is_deleted, f"{action} for a deleted job"
        if isinstance(action, StartPreflight) and self.is_down:
            self.preflights.insert(0, SERVICE_DOWN)
        if isinstance(action, CreateCluster):
            self.is_never_ready, self.pod_cause = False, None
            if self._cluster is None:
                self.queue = self.next_queue
        submitted = self.attempt.number if self.attempt is not None else 0
        await super().perform(job, action)
        if isinstance(action, SubmitAttempt) and action.config.attempt.number != submitted:
            self._count_submission()
        self._end_call(fault)

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:
        fault = self._start_call()
        if self._read_version != self.version:
            raise Conflict("the job has changed")
        self._check_transition(self.job.status, status)
        await super().write_status(job, status)
        self.writes += 1
        self.store(self.job.model_copy(update={"status": status}))
        self._read_version = self.version
        self._end_call(fault)

    def _start_call(self) -> CallFault:
        self.calls += 1
        fault = self.call_faults.pop(0) if self.call_faults else CallFault.NONE
        if fault is CallFault.REJECTED:
            raise TransientError("HTTP 429")
        if fault is CallFault.CRASH_BEFORE:
            raise Crash
        if fault is CallFault.TAKEN_OVER:
            self._take_over()
        return fault

    def _take_over(self) -> None:
        saved = self._read_version, self.calls, self.call_faults
        self.call_faults = []
        self.run_until_quiet(TAKEOVER_ROUNDS)
        self._read_version, self.calls, self.call_faults = saved
        self._was_taken_over = True
        self.takeovers += 1

    def _end_call(self, fault: CallFault) -> None:
        if fault is CallFault.RESPONSE_LOST:
            raise TransientError("time-out")
        if fault is CallFault.CRASH_AFTER:
            raise Crash

    def _record_preemption(self, status: JobStatus, seen: Observed) -> None:
        is_stopped = status.restart_state.retry.intent is not None
        if seen.is_queued and seen.attempt is None and not is_stopped:
            self.preempted |= {each.number for each in status.attempts[:1] if each.cause is None}

    # Invariants

    def _record_saves(self) -> None:
        best = max(self.saved, default=0)
        if best > self.best_saved:
            self.best_saved = best
            self.reset_budget()

    def _count_submission(self) -> None:
        self.submissions += 1
        allowed = 1 + self.budget + self.uncounted
        assert self.submissions <= allowed, f"{self.submissions} attempts, {allowed} allowed"

    def _check_transition(self, old: JobStatus, new: JobStatus) -> None:
        assert new.attempt - old.attempt in (0, 1), "attempt numbers grow by one"
        assert new.cluster.number - old.cluster.number in (0, 1), "cluster numbers grow by one"
        assert [r.number for r in new.attempts[:1]] == [new.attempt][: len(new.attempts)]
        causes = {record.number: record.cause for record in new.attempts}
        for record in old.attempts:
            now = causes.get(record.number)
            assert record.cause in (None, now) or record.number not in causes, (
                "the cause of an ended attempt changed"
            )
            if record.cause is None and now is not None:
                is_uncounted = not POLICIES[now].is_counted or now is Cause.SUCCEEDED
                self.uncounted += is_uncounted
                is_preempted = record.number in self.preempted and not self.pod_cause
                is_preempted = (
                    is_preempted and now is not Cause.DEADLINE_EXCEEDED
                )  # the user changed the deadline
                assert is_uncounted or not is_preempted, f"a preempted attempt ended with {now}"
        assert sum(record.cause is None for record in new.attempts) <= 1, "two attempts are running"
        _check_conditions(old, new)


def _check_conditions(old: JobStatus, new: JobStatus) -> None:
    kinds = [condition.type for condition in new.conditions]
    assert len(kinds) == len(set(kinds)), "duplicate condition"
    before = {condition.type: condition for condition in old.conditions}
    assert set(before) <= set(kinds), "a condition was removed"
    for condition in new.conditions:
        assert condition.status in ("True", "False", "Unknown"), condition
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", condition.reason), condition
        assert condition.last_transition_time, condition
        known = before.get(condition.type)
        if known is not None and known.status == condition.status:
            same = known.last_transition_time == condition.last_transition_time
            assert same, f"lastTransitionTime of {condition.type} changed without a transition"
