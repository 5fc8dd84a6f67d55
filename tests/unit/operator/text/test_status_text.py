from dataclasses import replace
from datetime import UTC, datetime

from raggrpo_api.progress import Metric
from raggrpo_api.status import (
    AttemptRecord,
    Cause,
    Condition,
    ConditionType,
    JobStatus,
    Phase,
    ProgressStatus,
    RestartCounts,
    RestartState,
    WatchState,
)
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.status_text import render_status, reward
from support.builders.jobs import KNOWN_7B, a_job

LONG = "trainer pod small-c1-trainer-x on node n1: Evicted: " + "low on memory, " * 20


def a_status() -> JobStatus:
    return JobStatus(
        phase=Phase.RUNNING,
        attempt=2,
        attempts=[
            AttemptRecord(number=2, from_step=100),
            AttemptRecord(
                number=1,
                cause=Cause.NODE_LOST,
                message=LONG,
                from_step=0,
                to_step=104,
                lost_steps=4,
                in_place=["RolloutEngineLost: engine 0 was started again at step 7"],
            ),
        ],
        progress=ProgressStatus(
            step=120,
            total_steps=400,
            progress_percentage=30,
            seconds_per_step=14.6,
            stage="Training",
            estimated_remaining_seconds=4088,
            metrics=[Metric(name="loss", value="0.1"), Metric(name="reward_mean", value="0.61")],
        ),
        restarts=RestartCounts(total=3, by_cause={"NodeLost": 1, "WorkerLost": 2}),
        conditions=[
            Condition(
                type=ConditionType.PROGRESSING, status="True", reason="Training", message=LONG
            )
        ],
        sizing=size(resolve(a_job(), KNOWN_7B).spec, KNOWN_7B),
    )


def test_a_status_fits_its_width_and_holds_every_word() -> None:
    text = render_status(a_status())
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())
    assert " ".join(text.split()).count(" ".join(LONG.split())) == 2


def test_a_stage_of_the_start_is_told_with_what_to_look_at() -> None:
    status = a_status()
    progress = replace(status.progress, stage="StartingRollout")
    state = RestartState(watch=WatchState(still_since=datetime(2026, 11, 22, 10, tzinfo=UTC)))
    starting = replace(status, phase=Phase.STARTING, progress=progress, restart_state=state)
    words = " ".join(render_status(starting).split())
    assert "stage StartingRollout since 2026-11-22T10:00:00Z: vLLM starts, reads the model" in words
    assert "recovery.deadlines.startingRolloutSeconds gives it more time" in words
    assert "gives it more time" not in render_status(status)


def test_what_matters_stands_in_one_line_each() -> None:
    lines = render_status(a_status()).splitlines()

    assert lines[0] == "phase     Running"
    assert lines[1] == (
        "progress  step 120/400 (30 %), 14.6 s/step, stage Training, 4088 s left, reward 0.61"
    )
    assert "restarts  3: NodeLost 1, WorkerLost 2" in lines
    assert "attempt   2 (First): running, steps 100 to 0, lost 0" in lines
    assert "            RolloutEngineLost: engine 0 was started again at step 7" in lines
    assert "  GPUs of the job   1" in lines


def test_the_best_checkpoint_is_named_with_what_it_was_judged_by() -> None:
    best = replace(a_status(), best_step=80, best_score="ValidationExactMatch 0.8125")
    told = "best      the checkpoint of step 80, ValidationExactMatch 0.8125"
    assert told in render_status(best).splitlines()
    assert "best " not in render_status(a_status())


def test_a_job_that_has_not_begun_shows_no_reward_and_no_sizing() -> None:
    text = render_status(JobStatus())
    assert text == "phase     Pending\nprogress  step 0/0 (0 %), 0 s/step, stage -\n"
    assert reward(JobStatus()) == ""
