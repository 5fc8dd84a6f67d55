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
from raggrpo_operator.core.lifecycle.observed import RetrieverObserved, SubmissionStatus
from raggrpo_operator.core.state.conditions import is_true
from support.fakes.adversarial_runtime import AdversarialRuntime, Mishap
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
ENDS = {Phase.SUCCEEDED, Phase.FAILED}
PATIENCE = 1200
"""Rounds that a job left in peace may take to its end."""


class Life(RuleBasedStateMachine):
    """Everything that users, pods, the API server and the operator's own death do to one job."""

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
        self.environment.work(rounds)

    @invariant()
    def what_it_waits_for_is_counted(self) -> None:
        if not hasattr(self, "environment"):
            return
        status = self.environment.job.status
        SITUATIONS["waits for a service"] += is_true(status, ConditionType.WAITING_FOR_ENDPOINT)
        SITUATIONS["is queued"] += status.phase is Phase.QUEUED
        SITUATIONS["is suspended"] += status.phase is Phase.SUSPENDED

    # The operator

    @rule(rounds=st.integers(1, 80))
    def operator_works(self, rounds: int) -> None:
        self.environment.work(rounds)

    @rule(mishaps=st.lists(st.sampled_from(Mishap), min_size=1, max_size=4))
    def calls_go_wrong(self, mishaps: list[Mishap]) -> None:
        self.environment.mishaps = mishaps
        self.environment.round()
        self.environment.mishaps = []

    @rule(age=st.integers(1, 3))
    def operator_acts_on_an_old_view(self, age: int) -> None:
        self.environment.round(age=age)

    @rule()
    def nothing_changes(self) -> None:
        self.environment.settles()

    # Time

    @rule(seconds=st.sampled_from([1, 10, 70, 600]))
    def time_passes(self, seconds: int) -> None:
        self.environment.now += timedelta(seconds=seconds)

    @rule(hours=st.sampled_from([-24, -1, 12]))
    def clock_jumps(self, hours: int) -> None:
        self.environment.jump(timedelta(hours=hours))

    # Users

    def edit(self, **changes: Any) -> None:
        self.changes |= {key.replace("__", "."): value for key, value in changes.items()}
        self.environment.edit(self.changes)

    @rule()
    def user_suspends_or_resumes(self) -> None:
        self.edit(suspend=not self.changes.get("suspend", False))

    @rule(more=st.integers(1, 10))
    def user_raises_the_target(self, more: int) -> None:
        self.edit(training__totalSteps=self.changes["training.totalSteps"] + more)
        if self.environment.is_over:  # which continues a finished job with a new budget
            self.environment.forgive()

    @rule(tokens=st.sampled_from([4096, 8192]))
    def user_changes_what_needs_another_preflight(self, tokens: int) -> None:
        self.edit(training__tokensPerMicroBatch=tokens)

    @rule(number=st.integers(0, 4))
    def user_changes_the_budget(self, number: int) -> None:
        self.edit(recovery__maxRestarts=number)

    @rule()
    def user_breaks_or_fixes_the_spec(self) -> None:
        every = 5 if self.changes["checkpoint.everySteps"] == 0 else 0
        self.edit(checkpoint__everySteps=every)

    @rule()
    def user_asks_for_a_retry(self) -> None:
        self.retries += 1
        self.environment.annotate(str(self.retries))
        self.environment.forgive()

    @precondition(lambda self: not self.environment.is_deleted)
    @rule(sure=st.integers(0, 50))
    def user_deletes_the_job(self, sure: int) -> None:
        if sure == 33:  # rarely, since nothing can follow
            self.environment.delete()

    # The driver

    @precondition(lambda self: self.environment.has_living_attempt)
    @rule(code=st.sampled_from(EXIT_CODES))
    def driver_ends(self, code: int | None) -> None:
        attempt = self.environment.living_attempt
        exits(code or 0)(self.environment, attempt)
        attempt.exit_code = code
        attempt.status = SubmissionStatus.SUCCEEDED if code == 0 else SubmissionStatus.FAILED

    @precondition(lambda self: self.environment.has_living_attempt)
    @rule(ignores_stop=st.booleans())
    def driver_hangs(self, ignores_stop: bool) -> None:
        self.environment.living_attempt.hangs = True
        self.environment.living_attempt.ignores_stop = ignores_stop

    @precondition(lambda self: self.environment.has_living_attempt)
    @rule()
    def driver_is_stopped_externally(self) -> None:
        self.environment.living_attempt.status = SubmissionStatus.STOPPED

    @rule(step=st.sampled_from([None, 0, 5, 10]))
    def next_attempt_resumes_there(self, step: int | None) -> None:
        self.environment.resume_at = step

    @precondition(lambda self: bool(self.environment.saved))
    @rule()
    def newest_checkpoint_is_torn(self) -> None:
        self.environment.torn = True

    # The cluster

    @precondition(lambda self: self.environment.has_cluster)
    @rule(
        cause=st.sampled_from(CAUSES_OF_PODS),
        saves_seconds=st.sampled_from([0, 30]),
        away_seconds=st.sampled_from([None, 5, 100]),
    )
    def head_is_lost(self, cause: Cause, saves_seconds: int, away_seconds: int | None) -> None:
        self.environment.lose_head(cause, saves_seconds=saves_seconds, away_seconds=away_seconds)

    @precondition(lambda self: self.environment.has_cluster)
    @rule()
    def head_restarts_without_state(self) -> None:
        self.environment.lose_attempt()

    @precondition(lambda self: self.environment.has_cluster)
    @rule()
    def cluster_is_deleted_externally(self) -> None:
        self.environment.delete_cluster()

    @precondition(lambda self: self.environment.has_cluster)
    @rule(cause=st.sampled_from([None, *CAUSES_OF_PODS[1:], Cause.START_FAILED]))
    def pod_cause(self, cause: Cause | None) -> None:
        self.environment.pod_cause = cause

    @precondition(lambda self: self.environment.has_cluster)
    @rule()
    def pods_never_get_ready(self) -> None:
        self.environment.never_ready = True

    @rule(fate=st.sampled_from(["lost", "hangs"]))
    def next_preflight_goes_wrong(self, fate: str) -> None:
        self.environment.preflights.append(fate)

    @precondition(lambda self: bool(self.environment.retrievers))
    @rule(has_ended=st.booleans())
    def retriever_fails(self, has_ended: bool) -> None:
        failed = RetrieverObserved("kb", "http://kb", problem="killed", has_ended=has_ended)
        self.environment.retrievers["kb"] = failed

    # What the job needs and does not own

    @rule(is_down=st.booleans())
    def service_goes_or_comes(self, is_down: bool) -> None:
        self.environment.service_is_down = is_down

    @precondition(lambda self: self.environment.has_cluster and not self.environment.queue)
    @rule()
    def queue_takes_the_pods(self) -> None:
        self.environment.preempt()

    @rule(why=st.sampled_from(["", "waits in queue research"]))
    def queue_holds_new_pods_back(self, why: str) -> None:
        self.environment.next_queue = why

    @precondition(lambda self: self.environment.has_cluster and bool(self.environment.queue))
    @rule()
    def queue_admits(self) -> None:
        self.environment.admit()

    # What is seen of it

    @rule(blind=st.booleans(), down=st.booleans())
    def connections_come_and_go(self, blind: bool, down: bool) -> None:
        self.environment.is_blind, self.environment.dashboard_is_down = blind, down

    @rule(cluster=st.booleans(), progress=st.booleans())
    def observations_are_old(self, cluster: bool, progress: bool) -> None:
        self.environment.shows_stale_cluster = cluster
        self.environment.shows_stale_progress = progress

    # Left in peace, every job ends, and nothing of it remains

    def teardown(self) -> None:
        if not hasattr(self, "environment"):
            return
        environment = self.environment
        environment.mishaps, environment.preflights = [], []
        environment.is_blind = environment.dashboard_is_down = environment.service_is_down = False
        environment.next_queue = ""
        if environment.has_cluster:
            environment.admit()
        environment.shows_stale_cluster = environment.shows_stale_progress = False
        environment.retrievers.clear()
        environment.pod_cause, environment.torn, environment.resume_at = None, False, None
        self.edit(suspend=False, checkpoint__everySteps=5)
        note(f"in peace since {environment.now - T0}")
        asks_again = environment.work(PATIENCE)
        SITUATIONS["rounds"] += environment.rounds_started
        SITUATIONS["another operator took over"] += environment.times_overtaken
        SITUATIONS.update(str(record.cause) for record in environment.job.status.attempts)
        if environment.is_deleted:
            return
        status = environment.job.status
        assert not asks_again, f"no end: {status}"
        assert status.phase in ENDS, status
        assert not environment.has_cluster, "a cluster outlives its job"
        assert not environment.retrievers, "a retriever outlives its job"
        assert is_true(status, ConditionType.COMPLETE) != is_true(status, ConditionType.FAILED)


SITUATIONS: Counter[str] = Counter()
"""Rounds of the operator, moments in which jobs waited, and by which causes attempts ended."""
STEPS = 50


def test_random_lifecycles_keep_invariants(capsys: pytest.CaptureFixture[str]) -> None:
    asked = os.environ.get("RAGGRPO_FUZZ_STEPS")
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=int(asked or 1000) // STEPS,
            stateful_step_count=STEPS,
            derandomize=asked is None,  # the same lives in every run, others in every `make fuzz`
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    for what in (
        "waits for a service",
        "is queued",
        "is suspended",
        "another operator took over",
    ):
        assert SITUATIONS[what], what
    with capsys.disabled():
        print(dict(SITUATIONS.most_common()), end=" ")
