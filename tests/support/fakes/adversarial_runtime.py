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
from support.fakes.fake_service_outage import REFUSES, FakeServiceOutage

MAX_CALLS = 5
"""Maximum calls of a round, including its status write."""
ROUNDS_TO_SETTLE = 12
"""Rounds at one time after which nothing may be written."""
ROUNDS_OF_ANOTHER = 3
KEPT_VIEWS = 4
REFUSED = "refused"
"""Outcome of a preflight while the service is down."""

T = TypeVar("T")


class Mishap(StrEnum):
    """Outcome of one call."""

    NONE = "none"
    REFUSED = "refused"
    """HTTP 429 or 500: the call had no effect."""
    ANSWER_LOST = "answer lost"
    """The call took effect, but the caller gets a timeout."""
    DIES_BEFORE = "dies before"
    DIES_AFTER = "dies after"
    OVERTAKEN = "overtaken"
    """Another operator took over and ran rounds before the call."""


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the fake environment never waits")


@dataclass
class AdversarialRuntime(FakeServiceOutage):
    """Fake runtime with faults, and the job as stored by the API server."""

    job: RagGrpoJob = field(default_factory=make_scenario_job)
    mishaps: list[Mishap] = field(default_factory=list)
    """Outcomes of the next calls; further calls succeed."""
    views: list[tuple[int, RagGrpoJob]] = field(default_factory=list)
    """Versions of the job, newest last."""
    service_is_down: bool = False
    next_queue: str = ""
    """Why the queue holds the pods of the next cluster, or ""."""
    never_ready: bool = False
    pod_cause: Cause | None = None
    """Cause reported by the pods of the cluster."""
    shows_stale_cluster: bool = False
    shows_stale_progress: bool = False
    version: int = 0
    calls: int = 0
    rounds_started: int = 0
    times_overtaken: int = 0
    writes: int = 0
    submissions: int = 0
    """Attempts since the last new checkpoint or user request."""
    forgiven: int = 0
    """Ends since then that do not count against the budget."""
    budget: int = 0
    best_saved: int = 0
    preempted: set[int] = field(default_factory=set)
    """Attempts without a failure when the operator observed their preemption."""
    _seen_version: int = 0
    _is_overtaken: bool = False
    _old_cluster: int = 0
    _old_progress: Progress | None = None

    def __post_init__(self) -> None:
        self.store(self.job)

    # Actions of users

    def store(self, job: RagGrpoJob) -> None:
        """Store a new version of the job, through JSON."""
        text = job.model_dump_json(by_alias=True, exclude_unset=True)
        self.job = RagGrpoJob.model_validate_json(text)
        self.version += 1
        self.views = [*self.views, (self.version, self.job)][-KEPT_VIEWS:]
        self.budget = max(self.budget, self.job.spec.recovery.max_restarts)

    def edit(self, changes: dict[str, Any]) -> None:
        """Replace the spec."""
        generation = self.job.metadata.generation + 1
        metadata = self.job.metadata.model_copy(update={"generation": generation})
        spec = make_scenario_job(changes).spec
        self.store(self.job.model_copy(update={"spec": spec, "metadata": metadata}))

    def annotate(self, retry: str) -> None:
        """Request a retry."""
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
        """Delete the cluster from outside."""
        self.lose_attempt()
        self.preempted.clear()
        self._cluster = self._lost = self._successor = None

    def lose_attempt(self) -> None:
        """Restart the head in place, without its submissions."""
        self._forgive_unobserved()
        self.attempt = None

    def preempt(self) -> None:
        self._forgive_unobserved()
        super().preempt()

    def _forgive_unobserved(self) -> None:
        """Do not count an attempt that the operator has not observed: it is submitted again."""
        record = next(iter(self.job.status.attempts), None)
        if self.attempt is not None and record is not None and not record.started:
            self.forgiven += self.attempt.number == record.number

    def admit(self) -> None:
        self.preempted.clear()  # an operator that has not polled since observes a restarted head
        super().admit()

    def lose_head(self, *what: Any, **more: Any) -> None:
        self.preempted.clear()
        super().lose_head(*what, **more)

    def forgive(self) -> None:
        """Reset the budget after a user request."""
        self.submissions = self.forgiven = 0

    def jump(self, by: timedelta) -> None:
        """Move the operator's clock; the environment's durations stay."""
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
        """Whether a Ray cluster exists, lost or not."""
        return self._cluster is not None

    @property
    def has_living_attempt(self) -> bool:
        """Whether a driver runs."""
        return self.attempt is not None and self.attempt.is_alive

    @property
    def living_attempt(self) -> Attempt:
        """The running driver."""
        assert self.attempt is not None
        return self.attempt

    @property
    def is_over(self) -> bool:
        """Whether the stored status is Complete or Failed."""
        status = self.job.status
        return is_true(status, ConditionType.COMPLETE) or is_true(status, ConditionType.FAILED)

    @property
    def is_deleted(self) -> bool:
        """Whether the job is being deleted."""
        return bool(self.job.metadata.deletion_timestamp)

    # Actions of the operator

    def round(self, *, age: int = 0) -> float | None:
        """Run one round on a view `age` versions old; return the requeue time in seconds."""
        self._seen_version, job = self.views[max(0, len(self.views) - 1 - age)]
        self.rounds_started += 1
        self.calls, self._is_overtaken, performed_before = 0, False, len(self.performed)
        try:
            decision = run_without_waiting(reconcile(job, self, self.now))
        except (Crash, OperatorError):
            self.mishaps.clear()
            return 1.0
        finally:
            assert self.calls <= MAX_CALLS, self.performed[performed_before:]
        return decision.requeue_after

    def work(self, rounds: int) -> bool:
        """Run rounds when due; return whether another round is due."""
        for _ in range(rounds):
            if (delay := self.round()) is None:
                return False
            self.now += timedelta(seconds=max(1.0, delay))
        return True

    def settles(self) -> None:
        """Check that repeated rounds at one time stop writing."""
        silent = 0
        for _ in range(ROUNDS_TO_SETTLE):
            written = self.writes
            self.round()
            silent = silent + 1 if self.writes == written else 0
            if silent == 2:
                return
        one, two = (status_to_json(status) for status in self.statuses[-2:])
        changes = [(key, one[key], two[key]) for key in one if one[key] != two[key]]
        raise AssertionError(f"keeps writing {changes}")

    async def observe(self, job: RagGrpoJob) -> Observed:
        seen = await super().observe(job)
        self._record_saves()
        cluster = seen.cluster
        if self.shows_stale_cluster and self._old_cluster:  # listed, but unresponsive
            self.preempted.clear()  # its state before the preemption
            old = ClusterObserved(self._old_cluster)
            return replace(seen, cluster=old, attempt=None, progress=None, is_head_reachable=False)
        if cluster is not None:
            self._old_cluster = cluster.number
        self._record_preemption(job.status, seen)
        if cluster is not None and not cluster.is_lost and self.pod_cause is not None:
            cluster = replace(cluster, cause=self.pod_cause, message="pod message")
        if cluster is not None and self.never_ready:
            cluster = replace(cluster, is_ready=False)
        progress = self._old_progress if self.shows_stale_progress else seen.progress
        self._old_progress = progress
        return replace(seen, cluster=cluster, progress=progress)

    def _observed_preflight(self) -> PreflightObserved | None:
        seen = super()._observed_preflight()
        if seen is None or seen.result is None or self._preflight is None:
            return seen
        return replace(seen, result=REFUSES) if self._preflight[2] == REFUSED else seen

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        mishap = self._start_call()
        is_current = self._seen_version == self.version
        if isinstance(action, CreateCluster | SubmitAttempt):
            assert is_current or self._is_overtaken, "action on a stale view"
        if isinstance(action, CreateCluster | SubmitAttempt | StartPreflight) and is_current:
            assert not self.is_over, f"{action} after the end"
            assert not self.is_deleted, f"{action} after the deletion"
        if isinstance(action, StartPreflight) and self.is_down:
            self.preflights.insert(0, REFUSED)
        if isinstance(action, CreateCluster):
            self.never_ready, self.pod_cause = False, None
            if self._cluster is None:
                self.queue = self.next_queue
        submitted = self.attempt.number if self.attempt is not None else 0
        await super().perform(job, action)
        if isinstance(action, SubmitAttempt) and action.config.attempt.number != submitted:
            self._count_submission()
        self._end_call(mishap)

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:
        mishap = self._start_call()
        if self._seen_version != self.version:
            raise Conflict("the job has changed")
        self._check_successor(self.job.status, status)
        await super().write_status(job, status)
        self.writes += 1
        self.store(self.job.model_copy(update={"status": status}))
        self._seen_version = self.version
        self._end_call(mishap)

    def _start_call(self) -> Mishap:
        self.calls += 1
        mishap = self.mishaps.pop(0) if self.mishaps else Mishap.NONE
        if mishap is Mishap.REFUSED:
            raise TransientError("HTTP 429")
        if mishap is Mishap.DIES_BEFORE:
            raise Crash
        if mishap is Mishap.OVERTAKEN:
            self._another_operator_works()
        return mishap

    def _another_operator_works(self) -> None:
        saved = self._seen_version, self.calls, self.mishaps
        self.mishaps = []
        self.work(ROUNDS_OF_ANOTHER)
        self._seen_version, self.calls, self.mishaps = saved
        self._is_overtaken = True
        self.times_overtaken += 1

    def _end_call(self, mishap: Mishap) -> None:
        if mishap is Mishap.ANSWER_LOST:
            raise TransientError("time-out")
        if mishap is Mishap.DIES_AFTER:
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
            self.forgive()

    def _count_submission(self) -> None:
        self.submissions += 1
        allowed = 1 + self.budget + self.forgiven
        assert self.submissions <= allowed, f"{self.submissions} attempts, {allowed} allowed"

    def _check_successor(self, old: JobStatus, new: JobStatus) -> None:
        assert new.attempt - old.attempt in (0, 1), "attempt numbers grow by one"
        assert new.cluster.number - old.cluster.number in (0, 1), "cluster numbers grow by one"
        assert [r.number for r in new.attempts[:1]] == [new.attempt][: len(new.attempts)]
        causes = {record.number: record.cause for record in new.attempts}
        for record in old.attempts:
            now = causes.get(record.number)
            assert record.cause in (None, now) or record.number not in causes, "an end was changed"
            if record.cause is None and now is not None:
                is_free = not POLICIES[now].is_counted or now is Cause.SUCCEEDED
                self.forgiven += is_free
                is_innocent = record.number in self.preempted and not self.pod_cause
                is_innocent = (
                    is_innocent and now is not Cause.DEADLINE_EXCEEDED
                )  # edited by the user
                assert is_free or not is_innocent, f"the queue's preemption became {now}"
        assert sum(record.cause is None for record in new.attempts) <= 1, "two attempts run"
        _check_conditions(old, new)


def _check_conditions(old: JobStatus, new: JobStatus) -> None:
    kinds = [condition.type for condition in new.conditions]
    assert len(kinds) == len(set(kinds)), "a condition twice"
    before = {condition.type: condition for condition in old.conditions}
    assert set(before) <= set(kinds), "a condition vanished"
    for condition in new.conditions:
        assert condition.status in ("True", "False", "Unknown"), condition
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", condition.reason), condition
        assert condition.last_transition_time, condition
        known = before.get(condition.type)
        if known is not None and known.status == condition.status:
            same = known.last_transition_time == condition.last_transition_time
            assert same, f"{condition.type} moved its time without changing"
