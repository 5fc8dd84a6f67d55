"""One round of a running attempt: status updates, deadlines and stop intents."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from raggrpo_api.status.attempts import AttemptRecord, RestartCounts
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, Pinned, ProgressStatus
from raggrpo_api.status.restart_state import Baseline, RetryState, SpentTime, WatchState
from raggrpo_api.trainer.progress import (
    CheckpointRef,
    EndpointOutage,
    Metric,
    Progress,
    Segment,
    Stage,
)
from raggrpo_operator.core.lifecycle.actions import DeleteCluster, DumpStacks, StopAttempt
from raggrpo_operator.core.lifecycle.during_attempt.follow import (
    FOLLOW_SECONDS,
    STOP_SECONDS,
    follow,
    stop_message,
)
from raggrpo_operator.core.lifecycle.during_attempt.progress import update_progress
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    Observed,
    SubmissionStatus,
)
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.sizing.grace import grace_seconds
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.state.conditions import get_condition, set_condition
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import T0, make_scenario_job

RUNNING_ATTEMPT = AttemptObserved(2, SubmissionStatus.RUNNING)
RECORD = AttemptRecord(number=2, cluster=3, started=T0 - timedelta(seconds=100), from_step=10)
EARLIER = AttemptRecord(
    number=1, cause=Cause.STALLED, from_step=0, to_step=27, lost_steps=7,
    started=T0 - timedelta(seconds=300), seconds=150,
)  # fmt: skip


def before(seconds: float) -> datetime:
    return T0 - timedelta(seconds=seconds)


def verified(status: JobStatus, number: int = 2) -> JobStatus:
    kind, message = ConditionType.RESUME_VERIFIED, f"attempt {number}: started from step 10"
    return set_condition(status, kind, True, "Verified", message, before(90))


RUNNING = JobStatus(
    attempt=2,
    attempts=[RECORD, EARLIER],
    checkpoint=CheckpointRef(step=10, path="/10"),
    progress=ProgressStatus(step=11, seconds_per_step=2.0),
    restarts=RestartCounts(lost_steps=7),
)
VERIFIED = verified(RUNNING)


def at(step: int = 15, **more: Any) -> Progress:
    values: dict[str, Any] = {"stage": Stage.TRAINING, "started_from_step": 10}
    values |= {"total_steps": 60, "seconds_per_step": 2.0}
    return Progress(attempt=2, step=step, **(values | more))


def with_state(*groups: Any, status: JobStatus = VERIFIED) -> JobStatus:
    for each in groups:
        status = replace(status, restart_state=status.restart_state.with_group(each))
    return status


def make_round(
    status: JobStatus = VERIFIED, changes: Mapping[str, Any] | None = None, **observed: Any
) -> Round:
    job = make_scenario_job(changes).model_copy(update={"status": status})
    return Round(job, Observed(**observed), T0, status, resolve(job, None))


def updated_status(
    progress: Progress | None, status: JobStatus = VERIFIED, **changes: Any
) -> JobStatus:
    this = make_round(status, changes)
    update_progress(this, RUNNING_ATTEMPT, progress)
    return this.status


def follow_once(
    progress: Progress | None,
    *groups: Any,
    changes: Mapping[str, Any] | None = None,
    status: JobStatus = VERIFIED,
    **observed: Any,
) -> Decision:
    return follow(make_round(with_state(*groups, status=status), changes, **observed), progress)


def condition(status: JobStatus, kind: ConditionType) -> tuple[str, str, str]:
    current = get_condition(status, kind)
    return current.status, current.reason, current.message


# Status updates


def test_first_progress_starts_attempt_and_counts_downtime() -> None:
    new = replace(RUNNING, attempts=[AttemptRecord(number=2), EARLIER])
    new = with_state(SpentTime(down_seconds=5), status=new)

    updated = updated_status(None, new)
    without_attempt = make_round(new)
    update_progress(without_attempt, None, None)

    assert (updated.attempts[0].started, updated.restart_state.spent.down_seconds) == (T0, 155)
    assert without_attempt.status == new
    later = updated_status(None, with_state(SpentTime(down_seconds=5)))
    assert later.attempts[0] == RECORD
    assert later.restart_state.spent.down_seconds == 5


def test_progress_updates_attempt_record() -> None:
    skipped = [{"path": f"/{n}", "reason": "truncated"} for n in range(20)]

    updated = updated_status(
        at(in_place=["RankLost: one"], waited_seconds=7.6, skipped_checkpoints=skipped)
    )

    record = updated.attempts[0]
    assert (record.from_step, record.to_step, record.waiting_seconds) == (10, 15, 8)
    assert record.in_place == ["RankLost: one"]
    assert record.skipped_checkpoints == [f"/{n}: truncated" for n in range(16)]


def test_start_step_is_kept_when_no_longer_reported() -> None:
    assert updated_status(at(started_from_step=None)).attempts[0].from_step == 10


def test_segments_are_those_of_resumed_attempt() -> None:
    first, second = (Segment(first_step=step, changes=["rollout.n: 5 → 3"]) for step in (7, 11))
    known = replace(VERIFIED, segments=[first])

    assert updated_status(at(segments=[first, second])).segments == [first, second]
    assert updated_status(at(started_from_step=None), known).segments == [first]
    assert updated_status(at(), known).segments == []  # lost with its steps


@pytest.mark.parametrize(
    ("seconds", "slowest"), [(4.94, 5.0), (5.0, 5.0), (5.06, 5.1), (7.777, 7.8)]
)
def test_slowest_save_seconds_are_maximum_of_stored_and_reported(
    seconds: float, slowest: float
) -> None:
    state = replace(VERIFIED.restart_state, slowest_save_seconds=5.0)
    updated = updated_status(at(save_seconds=seconds), replace(VERIFIED, restart_state=state))
    assert updated.restart_state.slowest_save_seconds == slowest


def test_effective_training_time_ratio_is_updated_after_new_step() -> None:
    assert updated_status(at(11)).effective_training_time_ratio == ""
    assert updated_status(at(12)).effective_training_time_ratio == "0.04"


def test_first_value_chosen_for_auto_is_pinned() -> None:
    chosen = at(pinned={"precision": "BF16", "attention": "Flash"})
    assert (updated_status(chosen).pinned.precision, updated_status(chosen).pinned.attention) == (
        "BF16",
        "Flash",
    )
    earlier = replace(VERIFIED, pinned=Pinned(precision="FP32", attention="Eager"))
    kept = updated_status(chosen, earlier).pinned
    assert (kept.precision, kept.attention) == ("FP32", "Eager")
    assert updated_status(at()).pinned == Pinned()


@pytest.mark.parametrize(
    ("stage", "seconds", "remaining"),
    [
        (Stage.TRAINING, 2.0, 90),
        (Stage.CHECKPOINTING, 0.5, 22),
        (Stage.VALIDATING, 2.0, None),
        (Stage.TRAINING, 0.0, None),
    ],
)
def test_remaining_time_is_estimated_only_during_training_steps(
    stage: Stage, seconds: float, remaining: int | None
) -> None:
    progress = updated_status(at(stage=stage, seconds_per_step=seconds)).progress
    assert progress.estimated_remaining_seconds == remaining
    assert progress.seconds_per_step == (seconds or 2.0)
    assert (progress.step_of_total, progress.progress_percentage, progress.stage) == (
        "15/60",
        25,
        stage,
    )


def test_progress_rounds_step_time_and_uses_job_target() -> None:
    progress = updated_status(at(total_steps=0, seconds_per_step=1.23456), status=VERIFIED).progress
    assert (progress.seconds_per_step, progress.total_steps, progress.step_of_total) == (
        1.235,
        60,
        "15/60",
    )


@pytest.mark.parametrize(("step", "percentage"), [(0, 0), (59, 98), (60, 100)])
def test_progress_is_hundred_percent_at_last_step_only(step: int, percentage: int) -> None:
    assert updated_status(at(step)).progress.progress_percentage == percentage


def test_progress_without_target_shows_step_only() -> None:
    this = make_round(changes={"training": {"epochs": 1}})
    update_progress(this, RUNNING_ATTEMPT, at(total_steps=0))
    progress = this.status.progress
    assert (progress.step_of_total, progress.total_steps, progress.progress_percentage) == (
        "15",
        0,
        0,
    )


def test_newest_and_best_checkpoint_are_reported() -> None:
    newest = CheckpointRef(step=20, path="/20")
    read = at(22, checkpoint=newest, best_step=20, best_score="ExactMatch 0.5")

    updated = updated_status(read)

    assert (updated.checkpoint, updated.best_step, updated.best_score) == (
        newest,
        20,
        "ExactMatch 0.5",
    )
    assert condition(updated, ConditionType.CHECKPOINT_HEALTHY) == ("True", "Saved", "step 20")


def test_resume_is_not_verified_against_own_checkpoint() -> None:
    own = at(22, started_from_step=5, checkpoint=CheckpointRef(step=20, path="/20"))

    updated = updated_status(
        own, replace(RUNNING, attempts=[replace(RECORD, from_step=None), EARLIER])
    )

    assert condition(updated, ConditionType.RESUME_VERIFIED)[:2] == ("False", "ResumeMismatch")
    assert updated.checkpoint == RUNNING.checkpoint
    assert condition(updated, ConditionType.CHECKPOINT_HEALTHY)[0] == "Unknown"


# Resume verification


@pytest.mark.row("B8")
@pytest.mark.parametrize(
    ("started_from", "expected"),
    [
        (None, ("Unknown", "NotYetReported", "")),
        (9, ("False", "ResumeMismatch", "attempt 2: started from step 9, expected at least 10")),
        (10, ("True", "Verified", "attempt 2: started from step 10")),
        (11, ("True", "Verified", "attempt 2: started from step 11")),
    ],
)
def test_resume_is_verified_against_newest_checkpoint(
    started_from: int | None, expected: tuple[str, str, str]
) -> None:
    earlier = verified(replace(RUNNING, attempts=[replace(RECORD, from_step=None)]), number=1)
    updated = updated_status(at(started_from_step=started_from), earlier)
    assert condition(updated, ConditionType.RESUME_VERIFIED) == expected


def test_resume_without_checkpoint_is_verified() -> None:
    updated = updated_status(at(started_from_step=0), replace(RUNNING, checkpoint=None))
    assert condition(updated, ConditionType.RESUME_VERIFIED)[:2] == ("True", "Verified")


def test_verified_resume_is_not_evaluated_again() -> None:
    updated = updated_status(at(started_from_step=3))
    assert condition(updated, ConditionType.RESUME_VERIFIED) == condition(
        VERIFIED, ConditionType.RESUME_VERIFIED
    )


def test_resume_from_older_checkpoint_is_verified_when_newer_were_skipped() -> None:
    skipped = [{"path": "/10", "reason": "truncated"}, {"path": "/9", "reason": "gone"}]
    updated = updated_status(at(started_from_step=8, skipped_checkpoints=skipped), RUNNING)
    assert condition(updated, ConditionType.RESUME_VERIFIED) == (
        "True",
        "OlderCheckpoint",
        "attempt 2: started from step 8 instead of 10; "
        "skipped checkpoints: /10: truncated; /9: gone; 7 steps of attempt 1 lost",
    )


@pytest.mark.parametrize("older", [[], [EARLIER]])
@pytest.mark.parametrize(
    ("started_from", "lost", "kept"), [(27, 0, 54.1), (25, 2, 50.1), (30, 0, 54.1), (5, 22, 10.1)]
)
def test_lost_steps_are_recounted_when_next_attempt_resumes(
    started_from: int, lost: int, kept: float, older: list[AttemptRecord]
) -> None:
    new = replace(RUNNING, attempts=[replace(RECORD, from_step=None), EARLIER, *older])
    # Until then, 20 of its 27 steps are counted as retained.
    status = with_state(SpentTime(kept_seconds=40.08), status=replace(new, checkpoint=None))

    updated = updated_status(at(started_from_step=started_from), status)

    assert [each.lost_steps for each in updated.attempts] == [0, lost, *(7 for _ in older)]
    assert updated.restarts.lost_steps == lost
    assert updated.restart_state.spent.kept_seconds == kept
    assert updated.attempts[0].from_step == started_from


def test_first_attempt_has_no_lost_steps() -> None:
    alone = replace(RUNNING, attempts=[replace(RECORD, from_step=None)], checkpoint=None)
    updated = updated_status(at(started_from_step=0), alone)
    assert (len(updated.attempts), updated.attempts[0].from_step) == (1, 0)


def test_lost_steps_are_recounted_only_once() -> None:
    updated = updated_status(at(started_from_step=12))
    assert updated.attempts[1] == EARLIER
    assert updated.restarts.lost_steps == 7


# Decisions


def intent_of(decision: Decision) -> Cause | None:
    return decision.status.restart_state.retry.intent


WATCHED = WatchState(
    looked=before(2), watched_since=before(9000), stage="Training", step_seen=15,
    still_since=before(5), reads_since_step=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "reason"), [(Stage.TRAINING, "Training"), (Stage.FIRST_STEP, "Starting")]
)
def test_attempt_with_progress_continues(stage: Stage, reason: str) -> None:
    decision = follow_once(at(stage=stage), WATCHED)

    assert condition(decision.status, ConditionType.PROGRESSING) == ("True", reason, "attempt 2")
    assert condition(decision.status, ConditionType.STALLED) == ("False", "MakingProgress", "")
    assert (intent_of(decision), decision.actions, decision.requeue_after) == (None, (), 1.0)


@pytest.mark.parametrize(("seconds", "is_exceeded"), [(60, False), (61, True)])
def test_stalled_attempt_is_stopped_after_stack_dump(seconds: int, is_exceeded: bool) -> None:
    decision = follow_once(at(), replace(WATCHED, still_since=before(seconds)))

    assert intent_of(decision) is (Cause.STALLED if is_exceeded else None)
    assert decision.actions == ((DumpStacks(2),) if is_exceeded else ())
    assert condition(decision.status, ConditionType.STALLED)[0] == str(is_exceeded)
    if is_exceeded:
        assert decision.requeue_after == 0.0
        assert condition(decision.status, ConditionType.PROGRESSING)[:2] == ("False", "Stalled")
        message = condition(decision.status, ConditionType.STALLED)[2]
        assert message.startswith(
            "no progress in stage Training at step 15 for 61 s (limit 60 s): "
        )
        assert stop_message(decision.status, Cause.STALLED) == message


def test_stall_is_detected_only_after_two_progress_reads() -> None:
    decision = follow_once(at(), replace(WATCHED, still_since=before(900), reads_since_step=0))
    assert intent_of(decision) is None
    assert decision.status.restart_state.watch.reads_since_step == 1
    twice = follow_once(at(), replace(WATCHED, still_since=before(900), reads_since_step=1))
    assert intent_of(twice) is Cause.STALLED


@pytest.mark.parametrize("progress", [at(16), at(stage=Stage.CHECKPOINTING)])
def test_new_step_or_stage_resets_stall_timer(progress: Progress) -> None:
    watch = follow_once(
        progress, replace(WATCHED, still_since=before(900))
    ).status.restart_state.watch
    assert (watch.still_since, watch.reads_since_step) == (T0, 1)
    assert (watch.stage, watch.step_seen) == (str(progress.stage), progress.step)


def test_outage_between_progress_reads_extends_step_deadline() -> None:
    waited = replace(WATCHED, still_since=before(100), outage_seconds=40.0, outage_step=15)
    assert intent_of(follow_once(at(), waited)) is None
    assert intent_of(follow_once(at(), replace(waited, outage_seconds=39.0))) is Cause.STALLED


WAITING = at(
    stage=Stage.WAITING_FOR_ENDPOINT,
    waiting_for=[EndpointOutage(name="endpoint kb", since="noon", cause="refused")],
)
OUTAGE = {"recovery.deadlines": {"outageSeconds": 300}}


@pytest.mark.parametrize(("waited", "since", "is_exceeded"), [(100, 200, False), (100, 201, True)])
def test_attempt_waits_for_service_within_outage_deadline(
    waited: int, since: int, is_exceeded: bool
) -> None:
    waiting = replace(
        WATCHED, outage_since=before(since), outage_step=15, outage_seconds=float(waited)
    )

    decision = follow_once(WAITING, waiting, changes=OUTAGE)

    assert intent_of(decision) is (Cause.ENDPOINT_DOWN if is_exceeded else None)
    service = "endpoint kb since noon: refused"
    if is_exceeded:
        why = f"service unavailable for 301 s (limit 300 s): {service}"
        assert condition(decision.status, ConditionType.PROGRESSING) == (
            "False",
            "EndpointDown",
            why,
        )
        assert decision.requeue_after == 0.0
    else:
        value, reason, message = condition(decision.status, ConditionType.WAITING_FOR_ENDPOINT)
        assert (value, reason, message.startswith(service)) == ("True", "EndpointDown", True)
        progressing = condition(decision.status, ConditionType.PROGRESSING)
        assert progressing == ("True", "WaitingForEndpoint", "attempt 2")
        assert condition(decision.status, ConditionType.STALLED) == ("False", "MakingProgress", "")
        assert decision.requeue_after == FOLLOW_SECONDS


def test_outage_starts_with_first_observation() -> None:
    watch = follow_once(
        WAITING, replace(WATCHED, unread_since=before(9))
    ).status.restart_state.watch
    assert watch == replace(WATCHED, outage_since=T0, outage_step=15)


def test_recovered_service_clears_waiting_condition() -> None:
    waiting = replace(WATCHED, outage_since=before(50), outage_step=15)
    status = follow_once(WAITING, waiting).status

    updated = follow(make_round(status), at(stage=Stage.TRAINING)).status

    assert condition(updated, ConditionType.WAITING_FOR_ENDPOINT)[:2] == (
        "False",
        "EndpointRecovered",
    )
    watch = updated.restart_state.watch
    assert (watch.outage_since, watch.outage_seconds) == (None, 50.0)


def test_resume_mismatch_stops_attempt() -> None:
    decision = follow_once(at(), status=RUNNING)
    assert intent_of(decision) is Cause.RESUME_MISMATCH
    assert decision.requeue_after == 0.0
    unknown = replace(RUNNING, attempts=[replace(RECORD, from_step=None)])
    assert intent_of(follow_once(at(started_from_step=None), status=unknown)) is None


@pytest.mark.parametrize("is_enabled", [True, False])
def test_degraded_attempt_is_stopped_only_if_restart_when_degraded_is_set(is_enabled: bool) -> None:
    state = VERIFIED.restart_state
    status = replace(
        VERIFIED,
        sizing=size(resolve(make_scenario_job(), KNOWN_TINY).spec, KNOWN_TINY),
        restart_state=replace(state, baseline=Baseline(step=11, seconds=1.0)),
    )
    changes = {"recovery.restartWhenDegraded": is_enabled}
    read = at(metrics=[Metric(name="mismatch_mean", value="0.2")])

    decision = follow_once(read, WATCHED, changes=changes, status=status)

    assert intent_of(decision) is (Cause.DEGRADED if is_enabled else None)
    assert condition(decision.status, ConditionType.SLOWING_DOWN)[0] == "True"
    assert condition(decision.status, ConditionType.POLICY_MISMATCH)[0] == "True"


# Stopping an attempt


QUEUED = ClusterObserved(3, is_queued=True)


def test_stop_intent_is_recorded_before_attempt_is_stopped() -> None:
    suspended = follow_once(at(), changes={"suspend": True})
    counted = SpentTime(counted_seconds=61)
    expired = follow_once(at(), counted, changes={"activeDeadlineSeconds": 60})
    queued = follow_once(at(), cluster=QUEUED)

    ends = [suspended, expired, queued]
    assert [*map(intent_of, ends)] == [Cause.SUSPENDED, Cause.DEADLINE_EXCEEDED, Cause.PREEMPTED]
    assert [each.actions for each in ends] == [(), (), ()]
    assert [each.requeue_after for each in ends] == [0.0] * 3
    assert [stop_message(each.status, Cause.SUSPENDED) for each in ends] == [
        "spec.suspend is true", "", "",
    ]  # fmt: skip


def test_interrupted_local_run_names_signal() -> None:
    interrupted = follow_once(at(), changes={"suspend": True}, interrupted_by="SIGINT")
    assert stop_message(interrupted.status, Cause.SUSPENDED) == "interrupted by SIGINT"


def with_stop_intent(seconds: float) -> JobStatus:
    status = with_state(RetryState(intent=Cause.STALLED), WatchState(watched_since=before(9000)))
    kind = ConditionType.PROGRESSING
    return set_condition(status, kind, False, "Stalled", "no progress", before(seconds))


def test_stuck_driver_is_deleted_with_its_cluster() -> None:
    this = make_round()
    limit = grace_seconds(this.spec, this.status) + STOP_SECONDS

    assert STOP_SECONDS == 60
    for seconds, action in [(limit, StopAttempt(2)), (limit + 1, DeleteCluster(3))]:
        decision = follow(make_round(with_stop_intent(seconds)), at())
        assert (decision.actions, decision.requeue_after) == ((action,), FOLLOW_SECONDS)


def test_operator_does_not_stop_attempt_during_preemption() -> None:
    decision = follow(make_round(with_stop_intent(9000), cluster=QUEUED), at())
    assert (decision.actions, decision.requeue_after) == ((), FOLLOW_SECONDS)


def test_stop_message_applies_only_to_matching_cause() -> None:
    status = with_stop_intent(5)
    assert stop_message(status, Cause.STALLED) == "no progress"
    assert stop_message(status, Cause.PREEMPTED) == ""
    other = with_state(RetryState(intent=Cause.PREEMPTED), status=status)
    assert stop_message(other, Cause.PREEMPTED) == ""
    assert stop_message(with_state(RetryState(), status=status), Cause.STALLED) == ""


@pytest.mark.parametrize(
    ("since", "cause"), [(None, None), (300, None), (301, Cause.PROGRESS_UNREACHABLE)]
)
def test_unreadable_progress_stops_attempt_at_progress_unreachable_deadline(
    since: int | None, cause: Cause | None
) -> None:
    changes = {"recovery.deadlines": {"progressUnreachableSeconds": 300}}
    unread = None if since is None else before(since)

    decision = follow_once(None, replace(WATCHED, unread_since=unread), changes=changes)

    assert intent_of(decision) is cause
    assert decision.status.restart_state.watch.unread_since == (unread or T0)
    assert decision.requeue_after == (0.0 if cause else FOLLOW_SECONDS)
