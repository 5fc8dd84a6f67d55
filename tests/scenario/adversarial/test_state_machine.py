import os
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_operator.core.lifecycle.observed import ServiceObserved, SubmissionStatus
from raggrpo_operator.core.state.conditions import is_true
from support.fakes.adversarial_runtime import AdversarialRuntime, CallFault
from support.fakes.fake_runtime import T0, exits, make_scenario_job

EXIT_CODES = [*map(int, ExitCode), 99, -9, None]
CAUSES_OF_PODS = [
    Cause.HEAD_LOST,
    Cause.WORKER_LOST,
    Cause.NODE_LOST,
    Cause.HOST_OUT_OF_MEMORY,
    Cause.PREEMPTED,
]
RETRIEVAL = {
    "retrieval": {
        "mode": "Prompt",
        "endpoints": [{"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}],
    },
    "data.maxPromptLength": 400,
}
TERMINAL_PHASES = {Phase.SUCCEEDED, Phase.FAILED}
MAX_ROUNDS_TO_END = 1200
"""Maximum rounds until a job finishes after the last fault."""


class JobLifecycle(RuleBasedStateMachine):
    """A job under random edits, pod and service failures, API errors and operator crashes."""

    @initialize(
        max_restarts=st.sampled_from([0, 1, 3]),
        deadline=st.sampled_from([0, 0, 900]),
        outage_seconds=st.sampled_from([60, 3600]),
        retrieval=st.booleans(),
        is_down=st.sampled_from([False, False, True]),
        queue=st.sampled_from(["", "", "waits in queue research"]),
        rounds=st.integers(0, 60),
    )
    def start(
        self,
        max_restarts: int,
        deadline: int,
        outage_seconds: int,
        retrieval: bool,
        is_down: bool,
        queue: str,
        rounds: int,
    ) -> None:
        self.changes: dict[str, Any] = {
            "training.totalSteps": 80,
            "checkpoint.everySteps": 5,
            "recovery.maxRestarts": max_restarts,
            "activeDeadlineSeconds": deadline,
            "recovery.deadlines": {
                "provisioningSeconds": 120,
                "preflightSeconds": 60,
                "outageSeconds": outage_seconds,
            },
            **(RETRIEVAL if retrieval else {}),
        }
        self.retries = 0
        self.environment = AdversarialRuntime(job=make_scenario_job(self.changes))
        self.environment.service_is_down, self.environment.next_queue = is_down, queue
        self.environment.run_until_quiet(rounds)

    @invariant()
    def count_waiting_states(self) -> None:
        if not hasattr(self, "environment"):
            return
        status = self.environment.job.status
        COVERAGE["waits for a service"] += is_true(status, ConditionType.WAITING_FOR_ENDPOINT)
        COVERAGE["is queued"] += status.phase is Phase.QUEUED
        COVERAGE["is suspended"] += status.phase is Phase.SUSPENDED

    # Operator

    @rule(rounds=st.integers(1, 80))
    def run_rounds(self, rounds: int) -> None:
        self.environment.run_until_quiet(rounds)

    @rule(calls_before=st.integers(0, 3))
    def let_another_operator_take_over(self, calls_before: int) -> None:
        faults = [CallFault.NONE] * calls_before
        self.inject_call_faults([*faults, CallFault.TAKEN_OVER])

    @rule(call_faults=st.lists(st.sampled_from(CallFault), min_size=1, max_size=4))
    def inject_call_faults(self, call_faults: list[CallFault]) -> None:
        self.environment.call_faults = call_faults
        self.environment.round()
        self.environment.call_faults = []

    @rule(age=st.integers(1, 3))
    def run_round_on_stale_view(self, age: int) -> None:
        self.environment.round(age=age)

    @rule()
    def check_that_writes_stop(self) -> None:
        self.environment.assert_settles()

    # Time

    @rule(seconds=st.sampled_from([1, 10, 70, 600]))
    def advance_time(self, seconds: int) -> None:
        self.environment.now += timedelta(seconds=seconds)

    @rule(hours=st.sampled_from([-24, -1, 12]))
    def move_clock(self, hours: int) -> None:
        self.environment.move_clock(timedelta(hours=hours))

    # Users

    def edit(self, **changes: Any) -> None:
        self.changes |= {key.replace("__", "."): value for key, value in changes.items()}
        self.environment.edit(self.changes)

    @rule()
    def suspend_or_resume(self) -> None:
        self.edit(suspend=not self.changes.get("suspend", False))

    @rule(more=st.integers(1, 10))
    def raise_target(self, more: int) -> None:
        self.edit(training__totalSteps=self.changes["training.totalSteps"] + more)
        if self.environment.is_finished:  # the edit reopens a finished job with a new budget
            self.environment.reset_budget()

    @rule(tokens=st.sampled_from([4096, 8192]))
    def change_preflight_input(self, tokens: int) -> None:
        self.edit(training__tokensPerMicroBatch=tokens)

    @rule(number=st.integers(0, 4))
    def change_max_restarts(self, number: int) -> None:
        self.edit(recovery__maxRestarts=number)

    @rule()
    def break_or_fix_spec(self) -> None:
        every = 5 if self.changes["checkpoint.everySteps"] == 0 else 0
        self.edit(checkpoint__everySteps=every)

    @rule()
    def request_retry(self) -> None:
        self.retries += 1
        self.environment.annotate(str(self.retries))
        self.environment.reset_budget()

    @precondition(lambda self: not self.environment.is_deleted)
    @rule(chance=st.integers(0, 50))
    def delete_job(self, chance: int) -> None:
        if chance == 33:  # rarely, because it ends the run
            self.environment.delete()

    # Driver

    @precondition(lambda self: self.environment.has_running_attempt)
    @rule(code=st.sampled_from(EXIT_CODES))
    def exit_driver(self, code: int | None) -> None:
        attempt = self.environment.running_attempt
        exits(code or 0)(self.environment, attempt)
        attempt.exit_code = code
        attempt.status = SubmissionStatus.SUCCEEDED if code == 0 else SubmissionStatus.FAILED

    @precondition(lambda self: self.environment.has_running_attempt)
    @rule(ignores_stop=st.booleans())
    def hang_driver(self, ignores_stop: bool) -> None:
        self.environment.running_attempt.hangs = True
        self.environment.running_attempt.ignores_stop = ignores_stop

    @precondition(lambda self: self.environment.has_running_attempt)
    @rule()
    def stop_driver_externally(self) -> None:
        self.environment.running_attempt.status = SubmissionStatus.STOPPED

    @rule(step=st.sampled_from([None, 0, 5, 10]))
    def set_resume_step(self, step: int | None) -> None:
        self.environment.resume_at = step

    @precondition(lambda self: bool(self.environment.saved))
    @rule()
    def tear_newest_checkpoint(self) -> None:
        self.environment.torn = True

    # Cluster

    @precondition(lambda self: self.environment.has_cluster)
    @rule(
        cause=st.sampled_from(CAUSES_OF_PODS),
        saves_seconds=st.sampled_from([0, 30]),
        away_seconds=st.sampled_from([None, 5, 100]),
    )
    def lose_head(self, cause: Cause, saves_seconds: int, away_seconds: int | None) -> None:
        self.environment.lose_head(cause, saves_seconds=saves_seconds, away_seconds=away_seconds)

    @precondition(lambda self: self.environment.has_cluster)
    @rule()
    def restart_head_without_state(self) -> None:
        self.environment.restart_head()

    @precondition(lambda self: self.environment.has_cluster)
    @rule()
    def delete_cluster_externally(self) -> None:
        self.environment.delete_cluster()

    @precondition(lambda self: self.environment.has_cluster)
    @rule(cause=st.sampled_from([None, *CAUSES_OF_PODS[1:], Cause.START_FAILED]))
    def set_pod_cause(self, cause: Cause | None) -> None:
        self.environment.pod_cause = cause

    @precondition(lambda self: self.environment.has_cluster)
    @rule()
    def keep_pods_unready(self) -> None:
        self.environment.is_never_ready = True

    @rule(outcome=st.sampled_from(["lost", "hangs"]))
    def fail_next_preflight(self, outcome: str) -> None:
        self.environment.preflights.append(outcome)

    @precondition(lambda self: bool(self.environment.retrievers))
    @rule(has_ended=st.booleans())
    def fail_retriever(self, has_ended: bool) -> None:
        failed = ServiceObserved("kb", "http://kb", problem="killed", has_ended=has_ended)
        self.environment.retrievers["kb"] = failed

    # Services and queue

    @rule(is_down=st.booleans())
    def set_service_availability(self, is_down: bool) -> None:
        self.environment.service_is_down = is_down

    @precondition(lambda self: self.environment.has_cluster and not self.environment.queue)
    @rule()
    def preempt_pods(self) -> None:
        self.environment.preempt()

    @rule(why=st.sampled_from(["", "waits in queue research"]))
    def queue_new_pods(self, why: str) -> None:
        self.environment.next_queue = why

    @precondition(lambda self: self.environment.has_cluster and bool(self.environment.queue))
    @rule()
    def admit_pods(self) -> None:
        self.environment.admit()

    # Observations

    @rule(blind=st.booleans(), down=st.booleans())
    def set_head_connectivity(self, blind: bool, down: bool) -> None:
        self.environment.is_blind, self.environment.dashboard_is_down = blind, down

    @rule(cluster=st.booleans(), progress=st.booleans())
    def serve_stale_observations(self, cluster: bool, progress: bool) -> None:
        self.environment.shows_stale_cluster = cluster
        self.environment.shows_stale_progress = progress

    # Without further faults, a job finishes and leaves no objects

    def teardown(self) -> None:
        if not hasattr(self, "environment"):
            return
        environment = self.environment
        environment.call_faults, environment.preflights = [], []
        environment.is_blind = environment.dashboard_is_down = environment.service_is_down = False
        environment.next_queue = ""
        if environment.has_cluster:
            environment.admit()
        environment.shows_stale_cluster = environment.shows_stale_progress = False
        environment.retrievers.clear()
        environment.pod_cause, environment.torn, environment.resume_at = None, False, None
        self.edit(suspend=False, checkpoint__everySteps=5)
        note(f"no faults since {environment.now - T0}")
        is_due = environment.run_until_quiet(MAX_ROUNDS_TO_END)
        COVERAGE["rounds"] += environment.rounds_started
        COVERAGE["another operator took over"] += environment.takeovers
        COVERAGE.update(str(record.cause) for record in environment.job.status.attempts)
        if environment.is_deleted:
            return
        status = environment.job.status
        assert not is_due, f"the job did not finish: {status}"
        assert status.phase in TERMINAL_PHASES, status
        assert not environment.has_cluster, "the cluster was not deleted"
        assert not environment.retrievers, "the retriever was not deleted"
        assert is_true(status, ConditionType.COMPLETE) != is_true(status, ConditionType.FAILED)


COVERAGE: Counter[str] = Counter()
"""Counts of rounds, waiting states and causes; they show what the random runs have covered."""
STEPS = 50


def test_random_lifecycles_keep_invariants(capsys: pytest.CaptureFixture[str]) -> None:
    fuzz_steps = os.environ.get("RAGGRPO_FUZZ_STEPS")
    run_state_machine_as_test(
        JobLifecycle,
        settings=settings(
            max_examples=int(fuzz_steps or 1000) // STEPS,
            stateful_step_count=STEPS,
            derandomize=fuzz_steps is None,  # reproducible, except in `make fuzz`
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    for state in (
        "waits for a service",
        "is queued",
        "is suspended",
        "another operator took over",
    ):
        assert COVERAGE[state], state
    with capsys.disabled():
        print(dict(COVERAGE.most_common()), end=" ")
