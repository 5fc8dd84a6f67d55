"""Single rounds before a driver runs: preflight, retrievers, queue, cluster, submission."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.attempts import AttemptRecord, Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import ClusterStatus, JobStatus, Pinned, PreflightStatus
from raggrpo_api.status.restart_state import (
    LaunchState,
    RestartState,
    RetryState,
    SpentTime,
    WatchState,
)
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, PreflightResult
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    StartPreflight,
    StartRetriever,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.before_attempt.preflight import spec_hash
from raggrpo_operator.core.lifecycle.decide import decide
from raggrpo_operator.core.lifecycle.observed import (
    ClusterObserved,
    Observed,
    PreflightObserved,
    ServiceObserved,
)
from raggrpo_operator.core.lifecycle.round import Decision
from raggrpo_operator.core.state.conditions import get_condition
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY
from support.builders.operator.rounds import at, condition_of, is_soon, kinds, make_condition
from support.fakes.fake_runtime import T0, make_scenario, make_scenario_job
from support.fakes.fake_service_outage import SERVICE_DOWN_RESULT

PASSED_RESULT = PreflightResult(facts=KNOWN_TINY)
LIMITS = {"recovery.deadlines": {"preflightSeconds": 400, "provisioningSeconds": 60}}
MANAGED = {
    "retrieval": {
        "mode": "Prompt",
        "endpoints": [{"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}],
    },
    "data.maxPromptLength": 400,
}
WATCHED = WatchState(looked=T0, watched_since=T0)
READY = ClusterObserved(1, is_ready=True)
QUEUED = ClusterObserved(1, is_queued=True, message="waits in queue research")


def preflight_round(
    seconds: float,
    preflight: PreflightObserved | None,
    changes: dict[str, Any] | None = None,
    *,
    reason: str = "Running",
    losses: int = 0,
    watch: WatchState = WATCHED,
    since: datetime | None = T0,
) -> Decision:
    """Run a round `seconds` after the preflight was started."""
    checks = make_condition(ConditionType.PREFLIGHT_PASSED, "Unknown", reason)
    state = RestartState(
        retry=RetryState(preflight_losses=losses),
        launch=LaunchState(waiting_since=since),
        watch=replace(watch, looked=at(seconds)),
    )
    status = JobStatus(conditions=[checks], restart_state=state, start_time=T0)
    job = make_scenario_job(LIMITS | (changes or {})).model_copy(update={"status": status})
    return decide(job, Observed(preflight=preflight), at(seconds))


def hash_of_job(job: dict[str, Any] | None = None) -> str:
    return spec_hash(make_scenario_job(LIMITS | (job or {})))


def make_checked_job(changes: dict[str, Any] | None = None, **status: Any) -> RagGrpoJob:
    """Return a job whose preflight has passed."""
    job = make_scenario_job(LIMITS | (changes or {}))
    passed = make_condition(ConditionType.PREFLIGHT_PASSED, "True", "Passed")
    fields: dict[str, Any] = {
        "conditions": [passed],
        "preflight": PreflightStatus(spec_hash=spec_hash(job), facts=KNOWN_TINY),
        "start_time": T0,
    }
    return job.model_copy(update={"status": JobStatus(**(fields | status))})


def make_recorded_job(
    changes: dict[str, Any] | None = None, record: AttemptRecord | None = None, **status: Any
) -> RagGrpoJob:
    """Return a job whose first attempt was recorded at T0."""
    launch = LaunchState(cluster_since=T0, tries=1)
    fields: dict[str, Any] = {
        "attempt": 1,
        "attempts": [record or AttemptRecord(number=1)],
        "cluster": ClusterStatus(name="small-1", number=1),
        "restart_state": RestartState(launch=launch, watch=WATCHED),
    }
    return make_checked_job(changes, **(fields | status))


# --- preflight


@pytest.mark.parametrize(
    ("reason", "seconds", "is_renewed"),
    [("Running", 9.9, False), ("Running", 10, True), ("PodsNotReady", 3, True)],
)
def test_preflight_timer_is_kept_for_ten_seconds_when_pod_is_not_observed(
    reason: str, seconds: float, is_renewed: bool
) -> None:
    decision = preflight_round(seconds, None, reason=reason)

    since = decision.status.restart_state.launch.waiting_since
    assert since == (at(seconds) if is_renewed else T0)
    assert kinds(decision) == [StartPreflight]
    assert is_soon(decision)


def test_preflight_pod_uses_job_image_and_own_sizing() -> None:
    [started] = decide(make_scenario_job(), Observed(default_image="trainer:1"), T0).actions

    assert isinstance(started, StartPreflight)
    assert started.plan.image == "trainer:1"
    assert PodRole.PREFLIGHT in {each.role for each in started.plan.sizing.pods}


def test_preflight_of_old_spec_is_replaced_and_timer_is_reset() -> None:
    decision = preflight_round(500, PreflightObserved("of an earlier spec"), losses=2)

    assert kinds(decision) == [DeletePreflight, StartPreflight]
    assert decision.requeue_after == 5.0
    state = decision.status.restart_state
    assert (state.launch.waiting_since, state.retry.preflight_losses) == (at(500), 0)
    assert condition_of(decision, ConditionType.PREFLIGHT_PASSED) == ("Unknown", "Running")


def test_lost_preflight_is_counted_and_restarted_without_timer_reset() -> None:
    decision = preflight_round(50, PreflightObserved(hash_of_job(), problem="evicted"), losses=1)

    assert kinds(decision) == [DeletePreflight, StartPreflight]
    state = decision.status.restart_state
    assert (state.launch.waiting_since, state.retry.preflight_losses) == (T0, 2)


def test_preflight_loss_count_resets_after_result() -> None:
    decision = preflight_round(50, PreflightObserved(hash_of_job(), PASSED_RESULT), losses=2)

    assert decision.status.restart_state.retry.preflight_losses == 0


@pytest.mark.parametrize(
    ("problem", "waiting_for", "why"),
    [
        ("evicted", "", "evicted"),
        ("", "ImagePullBackOff", "ImagePullBackOff"),
        ("evicted", "ImagePullBackOff", "evicted"),
        ("", "", "no result"),
    ],
)
def test_preflight_timeout_fails_job(problem: str, waiting_for: str, why: str) -> None:
    preflight = PreflightObserved(hash_of_job(), problem=problem, waiting_for=waiting_for)

    in_time, late = (preflight_round(seconds, preflight, losses=2) for seconds in (400, 400.1))

    assert condition_of(in_time, ConditionType.FAILED)[0] == "Unknown"
    assert condition_of(late, ConditionType.FAILED) == ("True", "PreflightFailed")
    assert condition_of(late, ConditionType.PREFLIGHT_PASSED) == ("False", "NoResult")
    failed = get_condition(late.status, ConditionType.FAILED)
    assert failed.message == (
        f"preflight did not finish within 400 s: {why}; "
        "to wait longer, increase recovery.deadlines.preflightSeconds"
    )
    assert late.status.restart_state.retry.preflight_losses == 0


def test_job_with_running_preflight_is_requeued_soon() -> None:
    decision = preflight_round(50, PreflightObserved(hash_of_job()))

    assert (kinds(decision), is_soon(decision)) == ([], True)


def test_preflight_result_after_deadline_is_accepted() -> None:
    decision = preflight_round(500, PreflightObserved(hash_of_job(), PASSED_RESULT))

    assert decision.status.attempt == 1


def test_preflight_timer_restarts_after_operator_downtime() -> None:
    job = make_checked_job(
        conditions=[make_condition(ConditionType.PREFLIGHT_PASSED, "Unknown", "Running")],
        restart_state=RestartState(launch=LaunchState(waiting_since=T0), watch=WATCHED),
    )

    decision = decide(job, Observed(preflight=PreflightObserved(hash_of_job())), at(3600))

    assert condition_of(decision, ConditionType.FAILED)[0] == "Unknown"
    assert decision.status.restart_state.watch.watched_since == at(3600)


def test_first_failed_check_is_condition_reason_and_message_lists_all_checks() -> None:
    ids = [CheckId.DATA_COLUMNS, CheckId.REWARD_CODE]
    checks = [Check(id=each, state=CheckState.FAILED, evidence=f"why {each}") for each in ids]
    result = PreflightResult(facts=KNOWN_TINY, checks=checks, exit_code=3)

    decision = preflight_round(5, PreflightObserved(hash_of_job(), result))

    assert condition_of(decision, ConditionType.PREFLIGHT_PASSED) == ("False", "DataColumns")
    failed = get_condition(decision.status, ConditionType.FAILED)
    assert failed.message.splitlines() == [f"{each}: why {each}" for each in ids]
    assert rules_on_facts_check(decision) is CheckState.PASSED


def rules_on_facts_check(decision: Decision) -> CheckState:
    checks = decision.status.preflight.checks
    [check] = [each.state for each in checks if each.id is CheckId.RULES_ON_FACTS]
    return check


def test_rule_violated_by_facts_is_reported_as_failed_check() -> None:
    short = PreflightResult(facts=KNOWN_TINY.model_copy(update={"context_length": 16}))

    decision = preflight_round(5, PreflightObserved(hash_of_job(), short))

    assert condition_of(decision, ConditionType.PREFLIGHT_PASSED) == ("False", "RulesOnFacts")
    assert rules_on_facts_check(decision) is CheckState.FAILED


def test_passed_preflight_resets_outage_timer() -> None:
    waited = replace(WATCHED, outage_seconds=200.0)

    decision = preflight_round(5, PreflightObserved(hash_of_job(), PASSED_RESULT), watch=waited)

    assert decision.status.restart_state.watch.outage_seconds == 0


def test_epochs_are_converted_to_steps_before_cluster_creation() -> None:
    epochs = {"training": {"epochs": 1}}

    decision = preflight_round(5, PreflightObserved(hash_of_job(epochs), PASSED_RESULT), epochs)

    [created] = [each for each in decision.actions if isinstance(each, CreateCluster)]
    assert created.plan.spec.training.total_steps == KNOWN_TINY.rows // 8


def test_preflight_pod_is_deleted_after_result() -> None:
    preflight = PreflightObserved(hash_of_job(), PASSED_RESULT)

    decision = decide(make_checked_job(), Observed(preflight=preflight), T0)

    assert kinds(decision) == [DeletePreflight, CreateCluster]


@pytest.mark.parametrize(("limit", "pause"), [(300, 30), (10, 10)])
def test_unavailable_services_are_probed_every_thirty_seconds_until_outage_deadline(
    limit: int, pause: int
) -> None:
    changes = {"recovery.deadlines": {"outageSeconds": limit}}
    preflight = PreflightObserved(hash_of_job(changes), SERVICE_DOWN_RESULT)
    first = preflight_round(5, preflight, changes)
    assert first.requeue_after == pause
    assert first.status.restart_state.watch.outage_since == at(5)
    job = make_scenario_job(changes).model_copy(update={"status": first.status})

    early = decide(job, Observed(), at(5 + pause - 0.5))
    due = decide(job, Observed(), at(5 + pause))

    assert kinds(early) == []
    assert early.requeue_after == pytest.approx(0.6)
    assert kinds(due) == [StartPreflight]


def test_preflight_deletion_is_retried_during_retry_interval() -> None:
    preflight = PreflightObserved(hash_of_job(), SERVICE_DOWN_RESULT)
    first = preflight_round(5, preflight)
    job = make_scenario_job(LIMITS).model_copy(update={"status": first.status})

    assert kinds(decide(job, Observed(preflight=preflight), at(6))) == [DeletePreflight]


def test_outage_deadline_during_preflight_fails_job() -> None:
    waited = replace(WATCHED, outage_since=at(-100_000), watched_since=at(-100_000))

    decision = preflight_round(
        5, PreflightObserved(hash_of_job(), SERVICE_DOWN_RESULT), watch=waited
    )

    assert condition_of(decision, ConditionType.FAILED) == ("True", "EndpointDown")
    assert condition_of(decision, ConditionType.PREFLIGHT_PASSED)[0] == "False"


ON_GPUS = {"resources": {"device": "GPU", "gpusPerNode": 8}}


def gpu_memory_check(changes: dict[str, Any], result: PreflightResult) -> Check | None:
    decision = preflight_round(5, PreflightObserved(hash_of_job(changes), result), changes)
    checks = decision.status.preflight.checks
    return next((each for each in checks if each.id is CheckId.GPU_MEMORY), None)


def test_gpu_memory_check_is_skipped_on_cpu_or_without_model_size() -> None:
    unread = PreflightResult(facts=KNOWN_7B.model_copy(update={"parameters": 0}))
    assert gpu_memory_check({}, PASSED_RESULT) is None
    assert gpu_memory_check(ON_GPUS, unread) is None
    assert gpu_memory_check(ON_GPUS, PASSED_RESULT) is not None


def test_specified_gpu_memory_is_used_in_check() -> None:
    specified = {"resources": {"device": "GPU", "gpusPerNode": 8, "gpuMemoryGib": 80}}

    check = gpu_memory_check(specified, PreflightResult(facts=KNOWN_7B))

    assert check is not None
    assert (check.state, check.evidence) == (CheckState.PASSED, "80.0 GiB per GPU, as specified")


def test_gpu_facts_from_preflight_pod_are_ignored() -> None:
    claimed = KNOWN_TINY.model_copy(update={"gpu_memory_mib": 1_000_000, "gpu_compute_major": 9})

    decision = preflight_round(5, PreflightObserved(hash_of_job(), PreflightResult(facts=claimed)))

    facts = decision.status.preflight.facts
    assert (facts.gpu_memory_mib, facts.gpu_compute_major, facts.gpu_product) == (0, 0, "")


# --- retrievers


def retriever_round(seconds: float, *retrievers: ServiceObserved) -> Decision:
    """Run a round `seconds` after the retrievers were started."""
    watch = replace(WATCHED, looked=at(seconds))
    state = RestartState(launch=LaunchState(waiting_since=T0), watch=watch)
    return decide(
        make_checked_job(MANAGED, restart_state=state), Observed(retrievers=retrievers), at(seconds)
    )


def test_retriever_condition_reports_loading_and_ready() -> None:
    loading = retriever_round(60, ServiceObserved("kb", "http://kb", problem="reads line 7"))
    ready = retriever_round(60, ServiceObserved("kb", "http://kb", is_ready=True))

    condition = get_condition(loading.status, ConditionType.RETRIEVER_READY)
    assert (condition.status, condition.reason) == ("False", "RetrieverNotReady")
    assert condition.message == "kb: reads line 7"
    assert is_soon(loading)
    assert condition_of(ready, ConditionType.RETRIEVER_READY) == ("True", "Ready")
    assert (loading.status.attempt, ready.status.attempt) == (0, 1)


def test_retriever_loading_is_limited_by_provisioning_deadline() -> None:
    loading = ServiceObserved("kb", "http://kb", problem="reads line 7")

    in_time, late = retriever_round(60, loading), retriever_round(60.1, loading)

    assert condition_of(in_time, ConditionType.FAILED)[0] == "Unknown"
    assert condition_of(late, ConditionType.FAILED) == ("True", "StartFailed")


def test_retriever_timer_starts_when_retriever_is_started() -> None:
    decision = retriever_round(500)

    assert kinds(decision) == [StartRetriever]
    assert decision.status.restart_state.launch.waiting_since == at(500)
    assert condition_of(decision, ConditionType.FAILED)[0] == "Unknown"


# --- recording an attempt


def test_first_attempt_is_recorded_with_its_cluster() -> None:
    decision = decide(make_checked_job(), Observed(), at(5))

    status = decision.status
    assert kinds(decision) == [CreateCluster]
    assert is_soon(decision)
    assert condition_of(decision, ConditionType.PROGRESSING) == ("True", "Starting")
    assert condition_of(decision, ConditionType.CLUSTER_READY) == ("False", "Provisioning")
    assert (status.restart_state.launch.cluster_since, status.cluster.number) == (at(5), 1)
    assert status.restart_state.launch.tries == 1


def make_ended_attempt(**changes: Any) -> AttemptRecord:
    record = AttemptRecord(number=1, cause=Cause.PROGRAM_ERROR, started=at(5), from_step=0)
    return replace(record, **changes)


def test_warm_attempt_is_recorded_before_submission() -> None:
    watch = replace(WATCHED, reads_since_step=2, unread_since=T0, still_since=T0, stage="Training")
    state = RestartState(launch=LaunchState(cluster_since=T0, tries=7), watch=watch)
    job = make_recorded_job(record=make_ended_attempt(), restart_state=state)

    decision = decide(job, Observed(cluster=READY), at(10))

    status, state = decision.status, decision.status.restart_state
    assert (decision.actions, decision.requeue_after) == ((), 0.0)
    assert (status.attempts[0].number, status.attempts[0].tier) == (2, Tier.WARM_CLUSTER)
    assert (state.launch.cluster_since, state.launch.tries) == (at(10), 0)
    assert (state.watch.reads_since_step, state.watch.unread_since) == (0, None)
    later = job.model_copy(update={"status": status})
    submitted = decide(later, Observed(cluster=READY), at(11))
    assert kinds(submitted) == [SubmitAttempt]
    assert submitted.status.config_hash == submitted.status.attempts[0].config_hash != ""


def test_tier_is_new_cluster_when_cluster_is_queued_again() -> None:
    job = make_recorded_job(record=make_ended_attempt(cause=Cause.PREEMPTED))

    decision = decide(job, Observed(cluster=QUEUED), at(10))

    assert decision.status.attempts[0].tier is Tier.NEW_CLUSTER
    assert condition_of(decision, ConditionType.READY) == ("False", "Queued")


@pytest.mark.parametrize(
    ("since", "started", "tier"),
    [
        (0, 5, Tier.WARM_CLUSTER),
        (7, 5, Tier.NEW_CLUSTER),
        (0, None, Tier.NEW_CLUSTER),
        (None, 5, Tier.WARM_CLUSTER),
        (None, None, Tier.WARM_CLUSTER),
    ],
)
def test_tier_is_new_cluster_unless_last_attempt_ran_on_same_pods(
    since: float | None, started: float | None, tier: Tier
) -> None:
    launch = LaunchState(cluster_since=None if since is None else at(since))
    state = RestartState(launch=launch, watch=WATCHED)
    record = make_ended_attempt(
        cause=Cause.PREEMPTED, started=None if started is None else at(started)
    )

    decision = decide(
        make_recorded_job(record=record, restart_state=state), Observed(cluster=READY), at(10)
    )

    assert decision.status.attempts[0].tier is tier


def test_tier_is_warm_cluster_when_pods_are_from_last_attempt() -> None:
    launch = LaunchState(cluster_since=at(3))
    state = RestartState(launch=launch, watch=WATCHED)
    records = [make_ended_attempt(number=2, started=at(5)), make_ended_attempt(started=at(1))]
    job = make_recorded_job(attempt=2, attempts=records, restart_state=state)

    decision = decide(job, Observed(cluster=READY), at(10))

    assert decision.status.attempts[0].tier is Tier.WARM_CLUSTER


def test_ten_newest_attempts_are_retained() -> None:
    records = [make_ended_attempt(number=n) for n in range(12, 2, -1)]
    job = make_recorded_job(attempt=12, attempts=records)

    attempts = decide(job, Observed(cluster=READY), at(10)).status.attempts

    assert [each.number for each in attempts] == list(range(13, 3, -1))


@pytest.mark.parametrize(("seconds", "starts"), [(-0.5, False), (0, True), (0.5, True)])
def test_attempt_starts_after_backoff(seconds: float, starts: bool) -> None:
    state = RestartState(retry=RetryState(next_retry_time=at(20)), watch=WATCHED)
    job = make_recorded_job(record=make_ended_attempt(), restart_state=state)

    decision = decide(job, Observed(cluster=READY), at(20 + seconds))

    assert (decision.status.attempt == 2) is starts
    assert decision.requeue_after == (0.0 if starts else pytest.approx(0.6))


def test_backoff_requeue_is_limited_by_active_deadline() -> None:
    state = RestartState(
        retry=RetryState(next_retry_time=at(50)), watch=WATCHED, spent=SpentTime(counted_since=T0)
    )
    job = make_recorded_job(
        {"activeDeadlineSeconds": 30}, record=make_ended_attempt(), restart_state=state
    )

    decision = decide(job, Observed(cluster=READY), at(20))

    assert decision.requeue_after == pytest.approx(10.1)


def test_lost_cluster_is_deleted_and_job_is_requeued_soon() -> None:
    lost = ClusterObserved(1, is_lost=True)

    decision = decide(
        make_recorded_job(record=make_ended_attempt()), Observed(cluster=lost), at(10)
    )

    assert decision.actions == (DeleteCluster(1),)
    assert is_soon(decision)


def test_cluster_uses_pinned_ray_version() -> None:
    facts = KNOWN_TINY.model_copy(update={"ray_version": "2.61.0"})
    preflight = PreflightStatus(spec_hash=hash_of_job(), facts=facts)

    first, starts = (
        decide(make_checked_job(preflight=preflight, pinned=pinned), Observed(), at(5)).actions[0]
        for pinned in (Pinned(ray_version="2.60.0"), Pinned())
    )

    assert isinstance(first, CreateCluster)
    assert isinstance(starts, CreateCluster)
    assert (first.ray_version, starts.ray_version) == ("2.60.0", "2.61.0")


# --- cluster


def cluster_round(seconds: float, cluster: ClusterObserved, **changes: Any) -> Decision:
    """Run a round `seconds` after the first attempt was recorded."""
    launch = LaunchState(cluster_since=T0, tries=1)
    state = RestartState(launch=launch, watch=replace(WATCHED, looked=at(seconds)))
    job = make_recorded_job(changes, restart_state=state)
    return decide(job, Observed(cluster=cluster), at(seconds))


@pytest.mark.parametrize(
    ("message", "reason", "why"),
    [("", "Provisioning", "its pods are not ready"), ("0/3 nodes", "PodsNotReady", "0/3 nodes")],
)
def test_provisioning_deadline_fails_job(message: str, reason: str, why: str) -> None:
    waiting = ClusterObserved(1, message=message)

    in_time, late = cluster_round(60, waiting), cluster_round(60.1, waiting)

    assert condition_of(in_time, ConditionType.CLUSTER_READY) == ("False", reason)
    assert (in_time.status.attempts[0].cause, is_soon(in_time)) == (None, True)
    record = late.status.attempts[0]
    assert (record.cause, record.message) == (
        Cause.UNSCHEDULABLE,
        f"the cluster was not ready within 60 s: {why}; "
        "to wait longer, increase recovery.deadlines.provisioningSeconds",
    )


def test_pod_problems_are_reported_after_grace_period() -> None:
    waiting = ClusterObserved(1, message="0/3 nodes")

    early, settled = cluster_round(2.9, waiting), cluster_round(3, waiting)

    assert condition_of(early, ConditionType.CLUSTER_READY) == ("False", "Provisioning")
    assert condition_of(settled, ConditionType.CLUSTER_READY) == ("False", "PodsNotReady")


def test_submission_is_limited_by_provisioning_deadline() -> None:
    in_time, late = cluster_round(60, READY), cluster_round(60.1, READY)

    assert (kinds(in_time), is_soon(in_time)) == ([SubmitAttempt], True)
    assert condition_of(in_time, ConditionType.CLUSTER_READY) == ("True", "Ready")
    assert in_time.status.restart_state.launch.tries == 2
    assert in_time.status.resume_hash
    record = late.status.attempts[0]
    assert (record.cause, record.message) == (
        Cause.HEAD_LOST,
        "the head accepted no submission for 60 s; "
        "to wait longer, increase recovery.deadlines.provisioningSeconds",
    )


@pytest.mark.parametrize("cluster", [None, ClusterObserved(1), READY])
def test_suspension_before_submission_does_not_start_driver(
    cluster: ClusterObserved | None,
) -> None:
    decision = decide(make_recorded_job({"suspend": True}), Observed(cluster=cluster), at(5))

    assert decision.status.attempts[0].cause is Cause.SUSPENDED
    assert decision.status.attempts[0].message.startswith("suspended ")
    assert decision.actions == ()


def test_attempt_waits_for_image_digests_of_nodes() -> None:
    pinned = Pinned(image="trainer:1", image_id=f"sha256:{'1' * 64}")
    job = make_recorded_job(pinned=pinned)

    decision = decide(job, Observed(cluster=READY, default_image="trainer:1"), at(5))

    assert (decision.actions, is_soon(decision)) == ((), True)


@pytest.mark.parametrize("image_id", ["", f"sha256:{'1' * 64}"])
def test_attempt_starts_when_image_digests_match_or_are_unknown(image_id: str) -> None:
    node_image_ids = (image_id,) if image_id else ()
    pinned = Pinned(image="trainer:1", image_id=image_id)
    cluster = replace(READY, image_ids=node_image_ids)

    decision = decide(
        make_recorded_job(pinned=pinned),
        Observed(cluster=cluster, default_image="trainer:1"),
        at(5),
    )

    assert kinds(decision) == [SubmitAttempt]


def test_image_of_head_is_pinned() -> None:
    by_registry, loaded = f"trainer@sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    cluster = replace(READY, image_ids=(by_registry, loaded))
    job = make_recorded_job(pinned=Pinned(image="trainer:1"))

    decision = decide(job, Observed(cluster=cluster, default_image="trainer:1"), at(5))

    assert decision.status.pinned.image_id == by_registry


def test_image_id_is_not_pinned_after_spec_image_changed() -> None:
    cluster = replace(READY, image_ids=(f"trainer@sha256:{'1' * 64}",))
    job = make_recorded_job(pinned=Pinned(image="trainer:1"), changes={"image": "trainer:2"})

    decision = decide(job, Observed(cluster=cluster), at(5))

    assert decision.status.pinned.image_id == ""


@pytest.mark.parametrize(
    ("pinned", "head_version", "in_pods", "starts"),
    [
        ("", "2.61.0", True, [SubmitAttempt]),
        ("2.60.0", "", True, []),  # the head is probed again
        ("2.60.0", "", False, [SubmitAttempt]),  # a local run has only one Ray version
    ],
)
def test_attempt_waits_for_ray_version_only_when_pinned_and_in_pods(
    pinned: str, head_version: str, in_pods: bool, starts: list[type]
) -> None:
    job = make_recorded_job(pinned=Pinned(image="trainer:1", ray_version=pinned))
    cluster = replace(READY, ray_version=head_version)
    observed = Observed(cluster=cluster, default_image="trainer:1", in_pods=in_pods)

    assert kinds(decide(job, observed, at(5))) == starts


# --- queue


def queued_round(seconds: float, changes: dict[str, Any], since: float = 0) -> Decision:
    """Run a round of a job that has been queued since `since`."""
    conditions = [
        make_condition(ConditionType.PREFLIGHT_PASSED, "True", "Passed"),
        make_condition(ConditionType.SUSPENDED, "True", "Queued", since),
    ]
    return decide(
        make_recorded_job(changes, conditions=conditions), Observed(cluster=QUEUED), at(seconds)
    )


def test_queued_job_is_not_requeued_without_deadline() -> None:
    decision = queued_round(1_000_000, {})

    assert decision.requeue_after is None
    assert decision.status.attempts[0].cause is None
    assert condition_of(decision, ConditionType.CLUSTER_READY) == ("False", "Queued")
    assert condition_of(decision, ConditionType.PROGRESSING) == ("False", "Queued")


@pytest.mark.parametrize(
    ("seconds", "delay"), [(100, 3500.1), (3600, 0.1), (3600.1, None), (-100, 3600.1)]
)
def test_queued_job_is_requeued_when_queue_deadline_is_due(
    seconds: float, delay: float | None
) -> None:
    decision = queued_round(seconds, {"recovery.deadlines": {"queueSeconds": 3600}})

    cause = decision.status.attempts[0].cause
    if delay is None:
        assert cause is Cause.UNSCHEDULABLE
    else:
        assert (cause, decision.requeue_after) == (None, pytest.approx(delay))


@pytest.mark.parametrize(("status", "reason"), [("True", "Suspended"), ("False", "Queued")])
def test_admission_is_not_reported_without_queued_condition(status: str, reason: str) -> None:
    conditions = [
        make_condition(ConditionType.PREFLIGHT_PASSED, "True", "Passed"),
        make_condition(ConditionType.SUSPENDED, status, reason),
    ]

    decision = decide(
        make_recorded_job(conditions=conditions), Observed(cluster=ClusterObserved(1)), at(5)
    )

    assert condition_of(decision, ConditionType.SUSPENDED) != ("False", "Admitted")
    assert decision.status.restart_state.launch.cluster_since == T0


# --- configuration schema of the image


async def test_default_image_with_different_schema_digest_is_accepted() -> None:
    result = PreflightResult(facts=KNOWN_TINY.model_copy(update={"schema_digest": "another"}))
    scenario = make_scenario(preflight_result=result)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED


def test_job_is_requeued_after_five_seconds_when_upgrade_is_required() -> None:
    facts = KNOWN_TINY.model_copy(update={"schema_digest": "unknown digest"})
    preflight = PreflightStatus(spec_hash=hash_of_job(), facts=facts)
    job = make_checked_job(preflight=preflight, pinned=Pinned(image="trainer:1"))

    decision = decide(job, Observed(default_image="trainer:1"), at(5))

    assert condition_of(decision, ConditionType.PROGRESSING) == ("False", "UpgradeRequired")
    assert (decision.actions, decision.requeue_after) == ((), 5.0)
