from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raggrpo_api.status.attempts import AttemptRecord, RestartCounts
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, JobWarning, Phase
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.progress import Stage
from raggrpo_operator.core.state.conditions import get_condition, set_condition
from raggrpo_operator.errors import AlreadyExists, Conflict, OperatorError
from raggrpo_operator.kube.client import JOBS, Manifest, api_error
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.process.rate_limit import RateLimit
from raggrpo_operator.kubernetes_runtime.rounds.events import transitions
from raggrpo_operator.kubernetes_runtime.rounds.status_writer import (
    EVENT_BURST,
    EVENT_SECONDS,
    REPORT_BURST,
    REPORT_SECONDS,
    StatusWriter,
    stored_status,
)
from raggrpo_operator.kubernetes_runtime.rounds.time_to_live import seconds_until_expiry
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore
from support.builders.operator.jobs import make_job, make_raw_job
from support.fakes.fake_kube import FakeKube, failing

T0 = datetime(2026, 11, 21, 12, tzinfo=UTC)
KEY = JobKey("default", "small")
STATUS_SECONDS = 10.0
"""Interval of writes that change only progress."""


@dataclass
class WriterSetup:
    """A StatusWriter with its dependencies."""

    kube: FakeKube = field(default_factory=FakeKube)
    now: datetime = T0

    def __post_init__(self) -> None:
        raw = make_raw_job()
        raw["metadata"] = {"name": "small", "namespace": "default", "uid": "5f1d", "generation": 1}
        self.body = self.kube.put(raw)
        self.objects = ClusterObjects(jobs={KEY: [self.body]})
        self.store = JobStore(self.objects)
        pace = Pace(poll_seconds=5, status_seconds=STATUS_SECONDS)
        self.writer = StatusWriter(self.kube, self.store, lambda: self.now, pace, instance="me")

    @property
    def writes(self) -> int:
        return sum(verb == "apply_status" for verb, _, _ in self.kube.calls)

    def events(self) -> list[Manifest]:
        return [each for (plural, _, _), each in self.kube.objects.items() if plural == "events"]

    def live(self) -> Manifest:
        return self.kube.objects[JOBS.plural, "default", "small"]


def status_at(step: int, **conditions: bool) -> JobStatus:
    status = JobStatus(progress=ProgressStatus(step=step))
    for name, value in conditions.items():
        status = set_condition(status, ConditionType(name), value, "Because", "words", T0)
    return status


def alternating_status(second: int) -> JobStatus:
    """Return the status of an attempt whose head reports another stage each second."""
    is_odd = bool(second % 2)
    status = status_at(second, WaitingForEndpoint=is_odd, Stalled=not is_odd)
    stage = Stage.WAITING_FOR_ENDPOINT if is_odd else Stage.TRAINING
    return replace(status, progress=replace(status.progress, stage=stage))


async def test_progress_writes_are_rate_limited_and_cached() -> None:
    setup = WriterSetup()
    body = await setup.writer.write(setup.body, status_at(1))
    for second in range(1, 10):
        setup.now = T0 + timedelta(seconds=second)
        assert await setup.writer.write(body, status_at(1 + second)) is body
        newest = setup.store.newest(KEY)
        assert newest == (body, status_at(1 + second))
    assert setup.writes == 1

    setup.now = T0 + timedelta(seconds=10)
    await setup.writer.write(body, status_at(11))
    assert setup.writes == 2
    assert stored_status(setup.live()).progress.step == 11


async def test_condition_change_is_written_immediately() -> None:
    setup = WriterSetup()
    body = await setup.writer.write(setup.body, status_at(1))
    await setup.writer.write(body, status_at(2, Stalled=True))
    assert setup.writes == 2


async def test_writes_and_events_of_alternating_reports_are_limited() -> None:
    setup, seconds = WriterSetup(), 3600
    body = setup.body
    for second in range(seconds):
        setup.now = T0 + timedelta(seconds=second)
        body = await setup.writer.write(body, alternating_status(second))

    by_reason = Counter(each["reason"] for each in setup.events())
    of_progress = seconds / STATUS_SECONDS
    of_reports = REPORT_BURST + seconds / REPORT_SECONDS
    assert REPORT_BURST <= setup.writes <= of_progress + of_reports + 1
    assert by_reason
    for count in by_reason.values():
        assert EVENT_BURST <= count <= EVENT_BURST + seconds / EVENT_SECONDS + 1


async def test_decision_is_written_immediately_after_alternating_reports() -> None:
    setup = WriterSetup()
    body = setup.body
    for second in range(100):
        setup.now = T0 + timedelta(seconds=second)
        body = await setup.writer.write(body, alternating_status(second))
    status, writes = alternating_status(100), setup.writes
    stopping = replace(status.restart_state.retry, intent=Cause.STALLED)
    status = replace(status, restart_state=status.restart_state.with_group(stopping))

    await setup.writer.write(body, status)

    assert setup.writes == writes + 1
    assert stored_status(setup.live()).restart_state.retry.intent is Cause.STALLED


async def test_limits_of_one_job_do_not_delay_others() -> None:
    limit, other = RateLimit(burst=2, seconds=10), JobKey("default", "other")

    assert [limit.take(KEY, "A", T0) for _ in range(3)] == [True, True, False]
    assert limit.take(KEY, "B", T0)
    assert limit.take(other, "A", T0)
    assert not limit.take(KEY, "A", T0 + timedelta(seconds=9))
    assert limit.take(KEY, "A", T0 + timedelta(seconds=10))
    assert not limit.take(KEY, "A", T0 + timedelta(seconds=11))


async def test_store_returns_written_status_before_cache_is_updated() -> None:
    setup = WriterSetup()
    await setup.writer.write(setup.body, status_at(1))
    newest = setup.store.newest(KEY)
    assert newest is not None
    assert stored_status(newest[0]).progress.step == 1
    assert "status" not in setup.body


async def test_status_store_recognizes_own_writes() -> None:
    setup = WriterSetup()
    assert not setup.store.is_own_write(setup.body)

    await setup.writer.write(setup.body, status_at(1))
    assert setup.store.is_own_write(setup.body)
    assert setup.store.is_own_write(setup.live())

    edited = setup.kube.put({**setup.live(), "metadata": dict(setup.live()["metadata"])})
    assert not setup.store.is_own_write(edited)
    metadata = {**setup.body["metadata"], "uid": "another"}
    assert not setup.store.is_own_write({**setup.body, "metadata": metadata})


async def test_spec_object_is_shared_between_cached_versions() -> None:
    setup = WriterSetup()
    await setup.writer.write(setup.body, status_at(1))
    setup.store.put(KEY, deepcopy(setup.live()))
    newest = setup.store.newest(KEY)
    assert newest is not None
    assert newest[0]["spec"] is setup.body["spec"]


async def test_newer_cached_job_version_replaces_own_write() -> None:
    setup = WriterSetup()
    await setup.writer.write(setup.body, status_at(1))
    edited = setup.kube.put({**setup.live(), "metadata": dict(setup.live()["metadata"])})
    setup.objects.jobs = {KEY: [edited]}
    assert setup.store.newest(KEY) == (edited, None)


async def test_status_write_of_outdated_version_conflicts() -> None:
    setup = WriterSetup()
    edited = {**setup.body, "metadata": {**setup.body["metadata"], "generation": 2}}
    edited["spec"] = {**edited["spec"], "suspend": True}
    setup.kube.put(edited)

    with pytest.raises(Conflict):
        await setup.writer.write(setup.body, status_at(1))

    newest = setup.store.newest(KEY)
    assert newest is not None
    assert newest[0]["spec"]["suspend"] is True
    assert "status" not in setup.live()


async def test_recreated_job_does_not_inherit_status() -> None:
    setup = WriterSetup()
    await setup.writer.write(setup.body, status_at(1))
    metadata = {**setup.body["metadata"], "uid": "another", "resourceVersion": "1"}
    fresh = {**setup.body, "metadata": metadata}
    setup.objects.jobs = {KEY: [fresh]}
    assert setup.store.newest(KEY) == (fresh, None)


async def test_event_is_posted_once_per_transition() -> None:
    setup = WriterSetup()
    body = setup.body
    for step in range(100):
        setup.now = T0 + timedelta(seconds=20 * step)
        body = await setup.writer.write(body, status_at(step, Stalled=True))
    assert len(setup.kube.named("events")) == 1


async def test_failed_event_post_does_not_prevent_status_write() -> None:
    setup = WriterSetup()
    setup.kube.before = failing("create")
    await setup.writer.write(setup.body, status_at(1, Accepted=True))
    assert stored_status(setup.live()).progress.step == 1


async def test_reconcile_error_is_written_once_and_cleared_on_recovery() -> None:
    setup = WriterSetup()
    body = setup.body
    for _ in range(3):
        status = stored_status(body)
        await setup.writer.report_error(body, status, ConditionReason.ACCESS_DENIED, "no rights")
        body = setup.live()
    assert setup.writes == 1
    error = get_condition(stored_status(body), ConditionType.RECONCILING)
    assert error.message == "no rights"
    assert get_condition(stored_status(body), ConditionType.READY).reason == "AccessDenied"

    await setup.writer.report_error(body, stored_status(body), ConditionReason.RECONCILED)
    await setup.writer.report_error(
        setup.live(), stored_status(setup.live()), ConditionReason.RECONCILED
    )
    assert setup.writes == 2
    recovered = stored_status(setup.live())
    assert get_condition(recovered, ConditionType.RECONCILING).status == "False"


def test_condition_transitions_have_event_notes_and_types() -> None:
    def notes(old: JobStatus, new: JobStatus) -> list[tuple[str, bool]]:
        return [(each.note, each.is_warning) for each in transitions(old, new)]

    empty, accepted = JobStatus(), status_at(0, Accepted=True)
    rejected = status_at(0, Accepted=False)
    assert notes(empty, accepted) == []
    assert notes(accepted, rejected) == [("The spec is invalid: words", True)]
    assert notes(rejected, rejected) == []
    assert notes(rejected, accepted) == [("The spec is valid again", False)]
    assert notes(empty, status_at(0, Stalled=False)) == []
    hang = [("The attempt is stalled: words", True)]
    assert notes(status_at(0, Stalled=False), status_at(0, Stalled=True)) == hang
    assert notes(empty, status_at(0, Ready=True)) == []


def with_warnings(*reasons: str) -> JobStatus:
    warnings = [JobWarning(path="spec.x", reason=each, message="odd → even") for each in reasons]
    return JobStatus(warnings=warnings, warning_count=len(warnings))


@pytest.mark.row("A3", "C4", "C7", "C19")
async def test_warning_event_is_posted_once_across_operator_restarts() -> None:
    setup = WriterSetup()
    body = await setup.writer.write(setup.body, with_warnings("First"))
    restarted = StatusWriter(
        setup.kube, setup.store, lambda: T0, Pace(poll_seconds=5, status_seconds=10), instance="new"
    )
    await restarted.write(body, with_warnings("First", "Second"))
    await restarted.write(setup.live(), with_warnings("First", "Second"))

    events = setup.kube.named("events")
    assert len(events) == 2
    posted = [each for key, each in setup.kube.objects.items() if key[0] == "events"]
    assert {(each["type"], each["reason"], each["note"]) for each in posted} == {
        ("Warning", "First", "spec.x: odd → even"),
        ("Warning", "Second", "spec.x: odd → even"),
    }


def test_unlisted_warnings_are_reported_by_count() -> None:
    some = replace(with_warnings("First"), warning_count=3)
    assert [each.note for each in transitions(with_warnings("First"), some)] == [
        "2 more: `raggrpo plan` lists those of the spec"
    ]
    assert list(transitions(some, some)) == []
    assert list(transitions(some, replace(some, warning_count=2))) == []
    assert list(transitions(some, replace(some, warnings=[]))) == []


REASONS = ("Because", *map(str, Cause), "Restarting", "PodsNotReady", "Queued", "OlderCheckpoint")


@pytest.mark.parametrize("kind", ConditionType)
def test_event_notes_do_not_contain_condition_names(kind: ConditionType) -> None:
    started = JobStatus(attempt=1, attempts=[AttemptRecord(number=1, from_step=0)])
    for before, value, reason in product((None, True, False), (True, False, None), REASONS):
        old = set_condition(started, kind, before, "Before", "words", T0)
        new = set_condition(started, kind, value, reason, "words", T0)
        for each in transitions(old, new):
            note = each.note.replace(f"({reason})", "")  # causes are allowed
            assert "=" not in note
            assert "Unknown" not in note
            names = {str(name) for name in ConditionType} - {"Complete", "Failed"}
            assert not names & set(note.replace(":", "").split()), note


def waiting_for_pods(reason: ConditionReason, message: str) -> JobStatus:
    return set_condition(JobStatus(), ConditionType.CLUSTER_READY, False, reason, message, T0)


def test_start_problem_event_is_repeated_only_when_reason_changes() -> None:
    unschedulable, image = ConditionReason.UNSCHEDULABLE, ConditionReason.IMAGE_PULL_FAILED
    trainer = waiting_for_pods(unschedulable, "trainer pod small-w1: 0/3 nodes have nvidia.com/gpu")
    head = waiting_for_pods(unschedulable, "head pod small-head: 0/4 nodes have enough cpu")
    pull = waiting_for_pods(image, "head pod small-head: ErrImagePull: no such image")

    assert list(transitions(trainer, head)) == []
    [event] = transitions(head, pull)
    assert (event.reason, event.is_warning) == ("ImagePullFailed", True)
    assert event.note.endswith("pods: head pod small-head: ErrImagePull: no such image")
    assert list(transitions(pull, pull)) == []


def test_resume_event_is_emitted_once_per_attempt() -> None:
    def resumed(*steps: int | None) -> JobStatus:
        """Return a status whose attempts, newest first, started from these steps."""
        numbered = zip(range(len(steps), 0, -1), steps, strict=True)
        attempts = [AttemptRecord(number=n, from_step=step) for n, step in numbered]
        status = JobStatus(attempt=len(steps), attempts=attempts)
        kind, reason = ConditionType.RESUME_VERIFIED, ConditionReason.VERIFIED
        return set_condition(status, kind, True, reason, f"attempts {steps}", T0)

    assert list(transitions(resumed(0), resumed(None, 0))) == []
    assert list(transitions(resumed(10, 0), resumed(10, 0))) == []
    [event] = transitions(resumed(None, 0), resumed(10, 0))
    assert "from step 10" in event.note


@pytest.mark.parametrize(
    ("code", "kind", "is_retryable"),
    [
        (401, "AccessDenied", True),
        (403, "AccessDenied", True),
        (404, "NotFound", True),
        (409, "Conflict", True),
        (410, "TransientError", True),
        (422, "PermanentError", False),
        (400, "PermanentError", False),
        (429, "TransientError", True),
        (500, "TransientError", True),
        (503, "TransientError", True),
    ],
)
def test_api_error_type_follows_http_status(code: int, kind: str, is_retryable: bool) -> None:
    error = api_error(code, "PATCH /x", b'{"message": "the reason"}')
    assert (type(error).__name__, error.retryable) == (kind, is_retryable)
    assert isinstance(error, OperatorError)
    assert "PATCH /x: HTTP" in str(error)
    assert str(error).endswith("the reason")


def test_already_exists_is_distinguished_from_conflict() -> None:
    taken = api_error(409, "POST /x", b'{"message": "exists", "reason": "AlreadyExists"}')
    changed = api_error(409, "POST /x", b'{"message": "try again", "reason": "Conflict"}')
    assert (type(taken), type(changed)) == (AlreadyExists, Conflict)


@pytest.mark.parametrize(
    ("lifetime", "ended_before", "expected"),
    [(-1, 100, None), (0, 0, 0), (60, 20, 40), (60, 60, 0), (60, 90, 0), (60, None, None)],
)
def test_seconds_until_job_expiry_follow_ttl_seconds_after_finished(
    lifetime: int, ended_before: int | None, expected: float | None
) -> None:
    job = make_job({"ttlSecondsAfterFinished": lifetime})
    ended = None if ended_before is None else T0 - timedelta(seconds=ended_before)
    job = job.model_copy(update={"status": JobStatus(completion_time=ended)})
    assert seconds_until_expiry(job, T0) == expected


def samples(metrics: Metrics) -> dict[str, list[dict[str, Any]]]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            if sample.name.startswith("raggrpo_job_"):
                by_name.setdefault(sample.name, []).append({**sample.labels, "is": sample.value})
    return by_name


@pytest.mark.row("B26")
def test_job_metrics_follow_status_until_job_is_deleted() -> None:
    metrics, job = Metrics(), make_job({"preset": "Fast"})
    running = JobStatus(
        phase=Phase.RUNNING,
        progress=ProgressStatus(progress_percentage=40),
        restarts=RestartCounts(total=3, lost_steps=7, by_cause={"HeadLost": 2, "Stalled": 1}),
        effective_training_time_ratio="0.62",
    )
    metrics.jobs.update(KEY, job.model_copy(update={"status": running}))
    shown = samples(metrics)
    assert shown["raggrpo_job_progress_ratio"][0]["is"] == 0.4
    phases = {each["phase"]: each["is"] for each in shown["raggrpo_job_phase"]}
    assert [phase for phase, value in phases.items() if value] == ["Running"]
    causes = {each["cause"]: each["is"] for each in shown["raggrpo_job_restarts_by_cause"]}
    assert causes == {"HeadLost": 2, "Stalled": 1}
    assert shown["raggrpo_job_restarts"][0]["is"] == 3
    assert shown["raggrpo_job_lost_steps"][0]["is"] == 7
    assert shown["raggrpo_job_effective_training_time_ratio"][0]["is"] == 0.62

    metrics.jobs.update(KEY, make_job({"preset": "Debug"}))
    assert [each["preset"] for each in samples(metrics)["raggrpo_job_info"]] == ["Debug"]
    assert "raggrpo_job_restarts_by_cause" not in samples(metrics)  # the job was recreated
    metrics.jobs.update(KEY, job.model_copy(update={"status": running}))

    metrics.jobs.remove(KEY)
    metrics.jobs.remove(KEY)
    assert samples(metrics) == {}
