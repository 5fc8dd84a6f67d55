from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_operator.core.lifecycle.actions import (
    Action,
    CreateCluster,
    DeletePreflight,
    StartPreflight,
    StopAttempt,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.observed import Observed, SubmissionStatus
from raggrpo_operator.errors import TransientError
from support.builders.operator.rounds import notes
from support.fakes.fake_runtime import (
    Attempt,
    FakeRuntime,
    Scenario,
    causes,
    exits,
    hangs,
    make_scenario_job,
)

PULL_FAILURE = "trainer pod small-c1-worker-0: ImagePullBackOff: no such image"


@dataclass
class PodsRuntime(FakeRuntime):
    """Fake runtime whose pods may not start, and whose preflight pod may terminate slowly."""

    waiting_for: str = ""
    final_cause: Cause | None = None
    preflight_waits: bool = False
    retrievers_wait: bool = False
    slow_deletion: bool = False
    lost_worker: bool = False
    evidence_after: float | None = None
    """Seconds from the end of an attempt until its lost worker is reported."""
    _deleting: int = field(default=0)
    _ended: datetime | None = None

    async def observe(self, job: RagGrpoJob) -> Observed:
        observed = await super().observe(job)
        if self.retrievers_wait:
            waiting = [replace(each, is_ready=False) for each in observed.retrievers]
            observed = replace(observed, retrievers=tuple(waiting))
        if self.preflight_waits and observed.preflight is not None:
            waiting = replace(observed.preflight, result=None, waiting_for=PULL_FAILURE)
            if self.final_cause is not None:
                waiting = replace(waiting, problem=PULL_FAILURE, cannot_start=True)
            return replace(observed, preflight=waiting)
        cluster = observed.cluster
        if cluster is None:
            return observed
        if self.waiting_for:
            problem = {"message": self.waiting_for, "cause": self.final_cause}
            return replace(observed, cluster=replace(cluster, is_ready=False, **problem))
        if self.evidence_after is not None and observed.attempt is not None:
            self._ended = self._ended or (self.now if observed.attempt.exit_code else None)
            observed = replace(observed, evidence_seconds=5.0)
            elapsed = (self.now - self._ended).total_seconds() if self._ended else -1
            self.lost_worker = elapsed >= self.evidence_after
        if self.lost_worker:
            return replace(observed, cluster=replace(cluster, cause=Cause.WORKER_LOST))
        return observed

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        if self.slow_deletion and isinstance(action, DeletePreflight):
            self._deleting = 2
        if self._deleting and isinstance(action, StartPreflight):
            self._deleting -= 1
            raise TransientError("waiting for the earlier preflight to terminate")
        await super().perform(job, action)


def make_pods_scenario(**environment: object) -> tuple[Scenario, PodsRuntime]:
    runtime = PodsRuntime(**environment)  # type: ignore[arg-type]
    return Scenario(make_scenario_job(), runtime), runtime


async def test_waiting_pods_are_reported_and_job_continues() -> None:
    scenario, runtime = make_pods_scenario(waiting_for=PULL_FAILURE)

    await scenario.until(lambda status: any(c.reason == "PodsNotReady" for c in status.conditions))
    assert scenario.condition(ConditionType.CLUSTER_READY) == (
        "False",
        "PodsNotReady",
        PULL_FAILURE,
    )

    runtime.waiting_for = ""
    status = await scenario.until_quiet()
    assert status.phase is Phase.SUCCEEDED
    assert scenario.count(CreateCluster) == 1


async def test_job_waiting_at_each_stage_emits_eight_events() -> None:
    managed = {"name": "kb", "managed": {"corpus": "/mnt/runs/c"}}
    runtime = PodsRuntime(waiting_for=PULL_FAILURE, preflight_waits=True, retrievers_wait=True)
    scenario = Scenario(
        make_scenario_job({"retrieval": {"mode": "Prompt", "endpoints": [managed]}}), runtime
    )

    def has_condition(kind: ConditionType, *expected: str) -> Callable[[JobStatus], bool]:
        return lambda s: any(
            c.type == kind and (c.status, c.reason) == expected for c in s.conditions
        )

    await scenario.until(has_condition(ConditionType.PREFLIGHT_PASSED, "Unknown", "PodsNotReady"))
    runtime.preflight_waits = False
    await scenario.until(lambda s: scenario.condition(ConditionType.RETRIEVER_READY)[0] == "False")
    runtime.retrievers_wait, runtime.queue = False, "waits in queue research"
    await scenario.until(has_condition(ConditionType.SUSPENDED, "True", "Queued"))
    runtime.queue = ""
    await scenario.until(has_condition(ConditionType.CLUSTER_READY, "False", "PodsNotReady"))
    runtime.waiting_for = PULL_FAILURE.replace("trainer", "head")
    await scenario.until(lambda s: "head" in scenario.condition(ConditionType.CLUSTER_READY)[2])
    runtime.waiting_for = ""
    await scenario.until_quiet()

    events = notes(scenario)
    assert scenario.status.phase is Phase.SUCCEEDED
    assert any(each.startswith("Waiting for managed retrievers") for each in events)
    assert len(events) == 8, events


async def test_permanent_start_failure_fails_job_with_pod_reason() -> None:
    scenario, _ = make_pods_scenario(waiting_for=PULL_FAILURE, final_cause=Cause.START_FAILED)

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED) == ("True", "StartFailed", PULL_FAILURE)
    assert scenario.count(SubmitAttempt) == 0


async def test_waiting_preflight_pod_is_reported_with_reason() -> None:
    scenario, runtime = make_pods_scenario(preflight_waits=True)

    await scenario.until(lambda status: any(c.reason == "PodsNotReady" for c in status.conditions))
    assert scenario.condition(ConditionType.PREFLIGHT_PASSED) == (
        "Unknown",
        "PodsNotReady",
        PULL_FAILURE,
    )

    runtime.preflight_waits = False
    assert (await scenario.until_quiet()).phase is Phase.SUCCEEDED


async def test_preflight_losses_are_counted_while_old_pods_terminate() -> None:
    scenario, _ = make_pods_scenario(slow_deletion=True, preflights=["lost"] * 20)

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[:2] == ("True", "PreflightFailed")
    assert scenario.count(StartPreflight) == 4


async def test_job_succeeds_despite_worker_lost_after_driver_exit() -> None:
    scenario, runtime = make_pods_scenario()

    def lose_worker(_: FakeRuntime, attempt: Attempt) -> None:
        runtime.lost_worker = True

    runtime.faults[1, 30] = lose_worker
    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert status.restarts.total == 0


@pytest.mark.parametrize(
    ("code", "evidence_after", "cause"),
    [
        (ExitCode.TRAINER_RANK_LOST, 2.0, Cause.WORKER_LOST),
        (ExitCode.COLLECTIVE_TIMEOUT, 2.0, Cause.WORKER_LOST),
        (ExitCode.TRAINER_RANK_LOST, 60.0, Cause.TRAINER_RANK_LOST),
        (ExitCode.NON_FINITE, 2.0, Cause.NON_FINITE),
    ],
)
async def test_settling_waits_for_pod_evidence(
    code: ExitCode, evidence_after: float, cause: Cause
) -> None:
    scenario, _ = make_pods_scenario(evidence_after=evidence_after, faults={(1, 30): exits(code)})

    status = await scenario.until(lambda status: status.restarts.total == 1)

    assert status.attempts[0].cause is cause


async def test_settling_does_not_wait_for_evidence_of_stopped_driver() -> None:
    scenario, runtime = make_pods_scenario(evidence_after=2.0, faults={(1, 25): hangs})
    while not scenario.count(StopAttempt):
        await scenario.round()
    assert runtime.attempt is not None
    runtime.attempt.status = SubmissionStatus.FAILED
    runtime.attempt.exit_code = ExitCode.TRAINER_RANK_LOST

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.STALLED, Cause.SUCCEEDED]


async def test_preflight_that_cannot_start_fails_job_without_retry() -> None:
    scenario, _ = make_pods_scenario(preflight_waits=True, final_cause=Cause.START_FAILED)

    status = await scenario.until_quiet()

    assert status.phase is Phase.FAILED
    assert scenario.count(StartPreflight) == 1
    assert scenario.condition(ConditionType.FAILED) == ("True", "StartFailed", PULL_FAILURE)
    assert scenario.condition(ConditionType.READY)[:2] == ("False", "StartFailed")
