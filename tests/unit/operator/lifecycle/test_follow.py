"""What one look at a running attempt leaves in status, and when it is stopped."""

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
from raggrpo_api.trainer.progress import CheckpointRef, EndpointOutage, Metric, Progress, Stage
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

RUNS = AttemptObserved(2, SubmissionStatus.RUNNING)
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
    given: dict[str, Any] = {"stage": Stage.TRAINING, "started_from_step": 10}
    given |= {"total_steps": 60, "seconds_per_step": 2.0}
    return Progress(attempt=2, step=step, **(given | more))


def having(*groups: Any, status: JobStatus = VERIFIED) -> JobStatus:
    for each in groups:
        status = replace(status, restart_state=status.restart_state.with_group(each))
    return status


def make_round(
    status: JobStatus = VERIFIED, changes: Mapping[str, Any] | None = None, **observed: Any
) -> Round:
    job = make_scenario_job(changes).model_copy(update={"status": status})
    return Round(job, Observed(**observed), T0, status, resolve(job, None))


def noted(progress: Progress | None, status: JobStatus = VERIFIED, **changes: Any) -> JobStatus:
    this = make_round(status, changes)
    update_progress(this, RUNS, progress)
    return this.status


def followed(
    progress: Progress | None,
    *groups: Any,
    changes: Mapping[str, Any] | None = None,
    status: JobStatus = VERIFIED,
    **observed: Any,
) -> Decision:
    return follow(make_round(having(*groups, status=status), changes, **observed), progress)


def told(status: JobStatus, kind: ConditionType) -> tuple[str, str, str]:
    found = get_condition(status, kind)
    return found.status, found.reason, found.message


# What is noted


def test_first_observation_starts_attempt_and_counts_downtime() -> None:
    new = replace(RUNNING, attempts=[AttemptRecord(number=2), EARLIER])
    new = having(SpentTime(down_seconds=5), status=new)

    found = noted(None, new)
    unseen = make_round(new)
    update_progress(unseen, None, None)

    assert (found.attempts[0].started, found.restart_state.spent.down_seconds) == (T0, 155)
    assert unseen.status == new
    later = noted(None, having(SpentTime(down_seconds=5)))
    assert later.attempts[0] == RECORD
    assert later.restart_state.spent.down_seconds == 5


def test_progress_updates_attempt_record() -> None:
    skipped = [{"path": f"/{n}", "reason": "truncated"} for n in range(20)]

    found = noted(at(in_place=["RankLost: one"], waited_seconds=7.6, skipped_checkpoints=skipped))

    record = found.attempts[0]
    assert (record.from_step, record.to_step, record.waiting_seconds) == (10, 15, 8)
    assert record.in_place == ["RankLost: one"]
    assert record.skipped_checkpoints == [f"/{n}: truncated" for n in range(16)]


def test_first_step_is_kept_when_no_longer_reported() -> None:
    assert noted(at(started_from_step=None)).attempts[0].from_step == 10


@pytest.mark.parametrize(
    ("seconds", "slowest"), [(4.94, 5.0), (5.0, 5.0), (5.06, 5.1), (7.777, 7.8)]
)
def test_slowest_save_is_kept(seconds: float, slowest: float) -> None:
    state = replace(VERIFIED.restart_state, slowest_save_seconds=5.0)
    found = noted(at(save_seconds=seconds), replace(VERIFIED, restart_state=state))
    assert found.restart_state.slowest_save_seconds == slowest


def test_ratios_are_computed_when_a_step_is_done() -> None:
    assert noted(at(11)).effective_training_time_ratio == ""
    assert noted(at(12)).effective_training_time_ratio == "0.04"


def test_first_chosen_value_of_auto_is_kept() -> None:
    chosen = at(pinned={"precision": "BF16", "attention": "Flash"})
    assert (noted(chosen).pinned.precision, noted(chosen).pinned.attention) == ("BF16", "Flash")
    earlier = replace(VERIFIED, pinned=Pinned(precision="FP32", attention="Eager"))
    kept = noted(chosen, earlier).pinned
    assert (kept.precision, kept.attention) == ("FP32", "Eager")
    assert noted(at()).pinned == Pinned()


@pytest.mark.parametrize(
    ("stage", "seconds", "left"),
    [
        (Stage.TRAINING, 2.0, 90),
        (Stage.CHECKPOINTING, 0.5, 22),
        (Stage.VALIDATING, 2.0, None),
        (Stage.TRAINING, 0.0, None),
    ],
)
def test_remaining_time_is_reported_during_steps(
    stage: Stage, seconds: float, left: int | None
) -> None:
    found = noted(at(stage=stage, seconds_per_step=seconds)).progress
    assert found.estimated_remaining_seconds == left
    assert found.seconds_per_step == (seconds or 2.0)
    assert (found.step_of_total, found.progress_percentage, found.stage) == ("15/60", 25, stage)


def test_progress_rounds_step_time_and_uses_job_target() -> None:
    found = noted(at(total_steps=0, seconds_per_step=1.23456), status=VERIFIED).progress
    assert (found.seconds_per_step, found.total_steps, found.step_of_total) == (1.235, 60, "15/60")


@pytest.mark.parametrize(("step", "percentage"), [(0, 0), (59, 98), (60, 100)])
def test_progress_is_hundred_percent_at_last_step_only(step: int, percentage: int) -> None:
    assert noted(at(step)).progress.progress_percentage == percentage


def test_steps_without_a_known_target_are_counted_alone() -> None:
    this = make_round(changes={"training": {"epochs": 1}})
    update_progress(this, RUNS, at(total_steps=0))
    found = this.status.progress
    assert (found.step_of_total, found.total_steps, found.progress_percentage) == ("15", 0, 0)


def test_newest_and_best_checkpoint_are_reported() -> None:
    newest = CheckpointRef(step=20, path="/20")
    read = at(22, checkpoint=newest, best_step=20, best_score="ExactMatch 0.5")

    found = noted(read)

    assert (found.checkpoint, found.best_step, found.best_score) == (newest, 20, "ExactMatch 0.5")
    assert told(found, ConditionType.CHECKPOINT_HEALTHY) == ("True", "Saved", "step 20")


def test_resume_is_not_verified_against_own_checkpoint() -> None:
    own = at(22, started_from_step=5, checkpoint=CheckpointRef(step=20, path="/20"))

    found = noted(own, replace(RUNNING, attempts=[replace(RECORD, from_step=None), EARLIER]))

    assert told(found, ConditionType.RESUME_VERIFIED)[:2] == ("False", "ResumeMismatch")
    assert found.checkpoint == RUNNING.checkpoint
    assert told(found, ConditionType.CHECKPOINT_HEALTHY)[0] == "Unknown"


# Where it began


@pytest.mark.row("B8")
@pytest.mark.parametrize(
    ("began", "expected"),
    [
        (None, ("Unknown", "NotYetReported", "")),
        (9, ("False", "ResumeMismatch", "attempt 2: started from step 9, expected at least 10")),
        (10, ("True", "Verified", "attempt 2: started from step 10")),
        (11, ("True", "Verified", "attempt 2: started from step 11")),
    ],
)
def test_resume_is_verified_from_newest_checkpoint(
    began: int | None, expected: tuple[str, str, str]
) -> None:
    earlier = verified(replace(RUNNING, attempts=[replace(RECORD, from_step=None)]), number=1)
    found = noted(at(started_from_step=began), earlier)
    assert told(found, ConditionType.RESUME_VERIFIED) == expected


def test_without_a_checkpoint_it_may_begin_anywhere() -> None:
    found = noted(at(started_from_step=0), replace(RUNNING, checkpoint=None))
    assert told(found, ConditionType.RESUME_VERIFIED)[:2] == ("True", "Verified")


def test_resume_is_verified_once() -> None:
    found = noted(at(started_from_step=3))
    assert told(found, ConditionType.RESUME_VERIFIED) == told(
        VERIFIED, ConditionType.RESUME_VERIFIED
    )


def test_resume_from_older_checkpoint_needs_reason() -> None:
    skipped = [{"path": "/10", "reason": "truncated"}, {"path": "/9", "reason": "gone"}]
    found = noted(at(started_from_step=8, skipped_checkpoints=skipped), RUNNING)
    assert told(found, ConditionType.RESUME_VERIFIED) == (
        "True",
        "OlderCheckpoint",
        "attempt 2: started from step 8 instead of 10; "
        "skipped checkpoints: /10: truncated; /9: gone",
    )


@pytest.mark.parametrize("older", [[], [EARLIER]])
@pytest.mark.parametrize(
    ("began", "lost", "kept"), [(27, 0, 54.1), (25, 2, 50.1), (30, 0, 54.1), (5, 22, 10.1)]
)
def test_steps_are_lost_as_far_as_the_next_attempt_repeats_them(
    began: int, lost: int, kept: float, older: list[AttemptRecord]
) -> None:
    new = replace(RUNNING, attempts=[replace(RECORD, from_step=None), EARLIER, *older])
    # 20 of its 27 steps count as kept until then.
    status = having(SpentTime(kept_seconds=40.08), status=replace(new, checkpoint=None))

    found = noted(at(started_from_step=began), status)

    assert [each.lost_steps for each in found.attempts] == [0, lost, *(7 for _ in older)]
    assert found.restarts.lost_steps == lost
    assert found.restart_state.spent.kept_seconds == kept
    assert found.attempts[0].from_step == began


def test_first_attempt_has_no_lost_steps() -> None:
    alone = replace(RUNNING, attempts=[replace(RECORD, from_step=None)], checkpoint=None)
    found = noted(at(started_from_step=0), alone)
    assert (len(found.attempts), found.attempts[0].from_step) == (1, 0)


def test_losses_are_corrected_once() -> None:
    found = noted(at(started_from_step=12))
    assert found.attempts[1] == EARLIER
    assert found.restarts.lost_steps == 7


# What is decided


def intent(found: Decision) -> Cause | None:
    return found.status.restart_state.retry.intent


SEEN = WatchState(
    looked=before(2), watched_since=before(9000), stage="Training", step_seen=15,
    still_since=before(5), reads_since_step=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "reason"), [(Stage.TRAINING, "Training"), (Stage.FIRST_STEP, "Starting")]
)
def test_attempt_with_progress_continues(stage: Stage, reason: str) -> None:
    found = followed(at(stage=stage), SEEN)

    assert told(found.status, ConditionType.PROGRESSING) == ("True", reason, "attempt 2")
    assert told(found.status, ConditionType.STALLED) == ("False", "MakingProgress", "")
    assert (intent(found), found.actions, found.requeue_after) == (None, (), 1.0)


@pytest.mark.parametrize(("seconds", "is_late"), [(60, False), (61, True)])
def test_stalled_attempt_is_dumped_and_stopped(seconds: int, is_late: bool) -> None:
    found = followed(at(), replace(SEEN, still_since=before(seconds)))

    assert intent(found) is (Cause.STALLED if is_late else None)
    assert found.actions == ((DumpStacks(2),) if is_late else ())
    assert told(found.status, ConditionType.STALLED)[0] == str(is_late)
    if is_late:
        assert found.requeue_after == 0.0
        assert told(found.status, ConditionType.PROGRESSING)[:2] == ("False", "Stalled")
        message = told(found.status, ConditionType.STALLED)[2]
        assert message.startswith(
            "no progress in stage Training at step 15 for 61 s (limit 60 s): "
        )
        assert stop_message(found.status, Cause.STALLED) == message


def test_stall_needs_two_reads() -> None:
    found = followed(at(), replace(SEEN, still_since=before(900), reads_since_step=0))
    assert intent(found) is None
    assert found.status.restart_state.watch.reads_since_step == 1
    twice = followed(at(), replace(SEEN, still_since=before(900), reads_since_step=1))
    assert intent(twice) is Cause.STALLED


@pytest.mark.parametrize("progress", [at(16), at(stage=Stage.CHECKPOINTING)])
def test_new_step_or_stage_resets_timer(progress: Progress) -> None:
    watch = followed(progress, replace(SEEN, still_since=before(900))).status.restart_state.watch
    assert (watch.still_since, watch.reads_since_step) == (T0, 1)
    assert (watch.stage, watch.step_seen) == (str(progress.stage), progress.step)


def test_waiting_between_two_reads_leaves_a_step_as_much_time_again() -> None:
    waited = replace(SEEN, still_since=before(100), outage_seconds=40.0, outage_step=15)
    assert intent(followed(at(), waited)) is None
    assert intent(followed(at(), replace(waited, outage_seconds=39.0))) is Cause.STALLED


WAITS = at(
    stage=Stage.WAITING_FOR_ENDPOINT,
    waiting_for=[EndpointOutage(name="endpoint kb", since="noon", cause="refused")],
)
OUTAGE = {"recovery.deadlines": {"outageSeconds": 300}}


@pytest.mark.parametrize(("before_it", "since", "is_late"), [(100, 200, False), (100, 201, True)])
def test_attempt_waits_for_service_within_outage_deadline(
    before_it: int, since: int, is_late: bool
) -> None:
    waiting = replace(
        SEEN, outage_since=before(since), outage_step=15, outage_seconds=float(before_it)
    )

    found = followed(WAITS, waiting, changes=OUTAGE)

    assert intent(found) is (Cause.ENDPOINT_DOWN if is_late else None)
    named = "endpoint kb since noon: refused"
    if is_late:
        why = f"service unavailable for 301 s (limit 300 s): {named}"
        assert told(found.status, ConditionType.PROGRESSING) == ("False", "EndpointDown", why)
        assert found.requeue_after == 0.0
    else:
        value, reason, message = told(found.status, ConditionType.WAITING_FOR_ENDPOINT)
        assert (value, reason, message.startswith(named)) == ("True", "EndpointDown", True)
        progressing = told(found.status, ConditionType.PROGRESSING)
        assert progressing == ("True", "WaitingForEndpoint", "attempt 2")
        assert told(found.status, ConditionType.STALLED) == ("False", "MakingProgress", "")
        assert found.requeue_after == FOLLOW_SECONDS


def test_outage_starts_with_first_observation() -> None:
    watch = followed(WAITS, replace(SEEN, unread_since=before(9))).status.restart_state.watch
    assert watch == replace(SEEN, outage_since=T0, outage_step=15)


def test_recovered_service_clears_waiting() -> None:
    waiting = replace(SEEN, outage_since=before(50), outage_step=15)
    status = followed(WAITS, waiting).status

    found = follow(make_round(status), at(stage=Stage.TRAINING)).status

    assert told(found, ConditionType.WAITING_FOR_ENDPOINT)[:2] == ("False", "EndpointRecovered")
    watch = found.restart_state.watch
    assert (watch.outage_since, watch.outage_seconds) == (None, 50.0)


def test_resume_mismatch_stops_attempt() -> None:
    found = followed(at(), status=RUNNING)
    assert intent(found) is Cause.RESUME_MISMATCH
    assert found.requeue_after == 0.0
    unknown = replace(RUNNING, attempts=[replace(RECORD, from_step=None)])
    assert intent(followed(at(started_from_step=None), status=unknown)) is None


@pytest.mark.parametrize("is_asked", [True, False])
def test_degradation_ends_only_an_attempt_whose_job_asks_for_it(is_asked: bool) -> None:
    state = VERIFIED.restart_state
    status = replace(
        VERIFIED,
        sizing=size(resolve(make_scenario_job(), KNOWN_TINY).spec, KNOWN_TINY),
        restart_state=replace(state, baseline=Baseline(step=11, seconds=1.0)),
    )
    changes = {"recovery.restartWhenDegraded": is_asked}
    read = at(metrics=[Metric(name="mismatch_mean", value="0.2")])

    found = followed(read, SEEN, changes=changes, status=status)

    assert intent(found) is (Cause.DEGRADED if is_asked else None)
    assert told(found.status, ConditionType.SLOWING_DOWN)[0] == "True"
    assert told(found.status, ConditionType.POLICY_MISMATCH)[0] == "True"


# How it is stopped


QUEUED = ClusterObserved(3, is_queued=True)


def test_suspension_a_deadline_and_a_queue_are_recorded_before_they_are_acted_on() -> None:
    suspended = followed(at(), changes={"suspend": True})
    counted = SpentTime(counted_seconds=61)
    late = followed(at(), counted, changes={"activeDeadlineSeconds": 60})
    queued = followed(at(), cluster=QUEUED)

    ends = [suspended, late, queued]
    assert [*map(intent, ends)] == [Cause.SUSPENDED, Cause.DEADLINE_EXCEEDED, Cause.PREEMPTED]
    assert [each.actions for each in ends] == [(), (), ()]
    assert [each.requeue_after for each in ends] == [0.0] * 3
    assert [stop_message(each.status, Cause.SUSPENDED) for each in ends] == [
        "spec.suspend is true", "", "",
    ]  # fmt: skip


def stopping(seconds: float) -> JobStatus:
    status = having(RetryState(intent=Cause.STALLED), WatchState(watched_since=before(9000)))
    kind = ConditionType.PROGRESSING
    return set_condition(status, kind, False, "Stalled", "stands still", before(seconds))


def test_stuck_driver_is_deleted_with_its_cluster() -> None:
    this = make_round()
    limit = grace_seconds(this.spec, this.status) + STOP_SECONDS

    assert STOP_SECONDS == 60
    for seconds, action in [(limit, StopAttempt(2)), (limit + 1, DeleteCluster(3))]:
        found = follow(make_round(stopping(seconds)), at())
        assert (found.actions, found.requeue_after) == ((action,), FOLLOW_SECONDS)


def test_preempting_queue_stops_attempt() -> None:
    found = follow(make_round(stopping(9000), cluster=QUEUED), at())
    assert (found.actions, found.requeue_after) == ((), FOLLOW_SECONDS)


def test_stop_message_is_used_for_matching_cause_only() -> None:
    status = stopping(5)
    assert stop_message(status, Cause.STALLED) == "stands still"
    assert stop_message(status, Cause.PREEMPTED) == ""
    other = having(RetryState(intent=Cause.PREEMPTED), status=status)
    assert stop_message(other, Cause.PREEMPTED) == ""
    assert stop_message(having(RetryState(), status=status), Cause.STALLED) == ""


@pytest.mark.parametrize(
    ("since", "cause"), [(None, None), (300, None), (301, Cause.PROGRESS_UNREACHABLE)]
)
def test_progress_may_be_unreadable_until_its_deadline(
    since: int | None, cause: Cause | None
) -> None:
    changes = {"recovery.deadlines": {"progressUnreachableSeconds": 300}}
    unread = None if since is None else before(since)

    found = followed(None, replace(SEEN, unread_since=unread), changes=changes)

    assert intent(found) is cause
    assert found.status.restart_state.watch.unread_since == (unread or T0)
    assert found.requeue_after == (0.0 if cause else FOLLOW_SECONDS)
