from dataclasses import replace
from datetime import UTC, datetime

import pytest

from raggrpo_api.status.attempts import AttemptRecord, RestartCounts
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType, JobWarning, Phase
from raggrpo_api.status.job_status import JobStatus, Pinned, PreflightStatus, ProgressStatus
from raggrpo_api.status.restart_state import RestartState, WatchState
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState
from raggrpo_api.trainer.progress import CheckpointRef, Metric, Segment
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.status_text import render_status, reward
from support.builders.operator.jobs import KNOWN_7B, make_job

LONG = "trainer pod small-c1-trainer-x on node n1: Evicted: " + "low on memory, " * 20


def make_status() -> JobStatus:
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
        sizing=size(resolve(make_job(), KNOWN_7B).spec, KNOWN_7B),
    )


def test_status_text_fits_width_without_losing_words() -> None:
    text = render_status(make_status())
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())
    assert " ".join(text.split()).count(" ".join(LONG.split())) == 2


@pytest.mark.row("A10")
def test_startup_stage_is_shown_with_advice() -> None:
    status = make_status()
    progress = replace(status.progress, stage="StartingRollout")
    state = RestartState(watch=WatchState(still_since=datetime(2026, 11, 22, 10, tzinfo=UTC)))
    starting = replace(status, phase=Phase.STARTING, progress=progress, restart_state=state)
    words = " ".join(render_status(starting).split())
    assert "stage StartingRollout since 2026-11-22T10:00:00Z: vLLM starts, reads the model" in words
    assert "increase recovery.deadlines.startingRolloutSeconds" in words
    assert "to wait longer" not in render_status(status)


def test_status_text_has_one_line_per_fact() -> None:
    lines = render_status(make_status()).splitlines()

    assert lines[0] == "phase     Running"
    assert lines[1] == (
        "progress  step 120/400 (30 %), 14.6 s/step, stage Training, 4088 s remaining, reward 0.61"
    )
    assert "restarts  3: NodeLost 1, WorkerLost 2" in lines
    assert "attempt   2 (First): running, steps 100 to 0, lost 0" in lines
    assert "            RolloutEngineLost: engine 0 was started again at step 7" in lines
    assert "  GPUs of the job   1" not in lines


def test_status_text_fits_screen() -> None:
    quiet = [
        Condition(type=each, status="Unknown", reason="NotYet", message=LONG)
        for each in ConditionType
        # ResultPushed is set once no attempt follows; a job has retrievers or an agent.
        if each not in (ConditionType.RESULT_PUSHED, ConditionType.AGENT_SERVICE_READY)
    ]
    attempts = [AttemptRecord(number=n, cause=Cause.WORKER_LOST) for n in range(10, 0, -1)]
    warnings = [JobWarning(path=f"spec.f{n}", reason="Low", message="low") for n in range(20)]
    status = replace(
        make_status(),
        conditions=quiet,
        attempts=attempts,
        warnings=warnings,
        warning_count=22,
        segments=[Segment(first_step=n) for n in range(2, 8)],
    )

    lines = render_status(status).splitlines()

    assert len(lines) <= 24
    assert "segments  3 earlier; the report lists all" in lines
    assert "segment   from step 7: no changed values" in lines
    assert "warning   20 more; `raggrpo plan` lists those of the spec" in lines
    assert "attempts  7 earlier; the report lists all" in lines
    assert next(line for line in lines if line.startswith("attempt ")).startswith("attempt   8 ")
    assert "Accepted=Unknown" in " ".join(lines)


@pytest.mark.row("F1")
@pytest.mark.parametrize("state", CheckState)
def test_layers_with_adapters_are_shown_if_accepted(state: CheckState) -> None:
    check = Check(id=CheckId.LORA_TARGETS, state=state, evidence="rank 32 in 196 linear layers")
    status = replace(make_status(), preflight=PreflightStatus(checks=[check]))
    is_accepted = state in (CheckState.PASSED, CheckState.WARNED)
    shown = "LoRA      rank 32 in 196 linear layers" in render_status(status).splitlines()
    assert shown is is_accepted


def test_attention_in_use_is_shown_once_known() -> None:
    status = replace(make_status(), pinned=Pinned(attention="Flash", precision="BF16"))
    assert "attention Flash, precision BF16" in render_status(status).splitlines()
    assert "attention" not in render_status(make_status())


def test_best_checkpoint_is_shown_with_score() -> None:
    best = replace(make_status(), best_step=80, best_score="ValidationExactMatch 0.8125")
    expected = "best      checkpoint of step 80, ValidationExactMatch 0.8125"
    assert expected in render_status(best).splitlines()
    assert "best " not in render_status(make_status())


def test_status_of_unstarted_job_omits_unknown_values() -> None:
    text = render_status(JobStatus())
    assert text == "phase     Pending\n"
    assert reward(JobStatus()) == ""


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (ProgressStatus(total_steps=60), "progress  step 0/60 (0 %)"),
        (ProgressStatus(stage="LoadingModel"), "progress  stage LoadingModel"),
        (ProgressStatus(step=3, seconds_per_step=1.5), "progress  step 3, 1.5 s/step"),
    ],
)
def test_progress_omits_unknown_values(progress: ProgressStatus, line: str) -> None:
    status = replace(make_status(), progress=progress)
    assert line in render_status(status).splitlines()


def test_optional_status_lines_are_shown_when_set() -> None:
    waiting = Condition(
        type=ConditionType.WAITING_FOR_ENDPOINT, status="True", reason="Down", message="kb"
    )
    status = replace(
        make_status(),
        checkpoint=CheckpointRef(path="/mnt/runs/checkpoints/step-100", step=100),
        best_step=80,
        restarts=RestartCounts(total=2),
        effective_training_time_ratio="0.93",
        waiting_time_ratio="0.02",
        warnings=[JobWarning(path="spec.rollout.topP", reason="TopPBelowOne", message="low")],
        warning_count=2,
        conditions=[waiting],
        attempts=[AttemptRecord(number=1)],
        segments=[Segment(first_step=7, changes=["rollout.n: 5 → 3"])],
    )
    lines = render_status(status).splitlines()

    assert {
        "waiting   for kb",
        "newest    /mnt/runs/checkpoints/step-100",
        "best      checkpoint of step 80",
        "restarts  2",
        "ETTR      0.93 (share of time spent on retained steps)",
        "waited    0.02 (share of time spent waiting for services)",
        "segment   from step 7: rollout.n: 5 → 3",
        "warning   spec.rollout.topP: low",
        "warning   1 more; `raggrpo plan` lists those of the spec",
        "condition WaitingForEndpoint=True Down: kb",
        "attempt   1 (First): running, steps ? to 0, lost 0",
    } <= set(lines)


def test_optional_status_lines_are_hidden_when_unset() -> None:
    quiet = Condition(type=ConditionType.PROGRESSING, status="True", reason="Training")
    warning = JobWarning(path="spec.rollout.topP", reason="TopPBelowOne", message="low")
    status = replace(
        make_status(),
        conditions=[quiet],
        restarts=RestartCounts(),
        warnings=[warning],
        warning_count=1,
        progress=replace(make_status().progress, stage="", estimated_remaining_seconds=None),
    )
    lines = render_status(status).splitlines()
    labels = {line.split()[0] for line in lines if line[:1] != " "}
    assert labels == {"phase", "progress", "attempt", "warning", "condition"}
    assert "condition Progressing=True Training" in lines
    assert lines[1] == "progress  step 120/400 (30 %), 14.6 s/step, reward 0.61"
    assert sum(line.startswith("warning") for line in lines) == 1


def test_status_omits_stage_and_remaining_time_of_ended_attempt() -> None:
    status = replace(make_status(), phase=Phase.PREFLIGHT)
    lines = render_status(status).splitlines()
    assert lines[1] == "progress  step 120/400 (30 %), 14.6 s/step, reward 0.61"


def test_sizing_shows_pods_and_terms_in_columns() -> None:
    lines = render_status(make_status(), with_sizing=True).splitlines()
    sizing = lines[lines.index("sizing") + 1 :]

    assert sizing[:8] == [
        "  GPUs of the job   1",
        "  CPUs per pod      8",
        f"  memory per pod    {make_status().sizing.memory}",
        f"  /dev/shm per pod  {make_status().sizing.shm}",
        "  pods in a cluster",
        f"    1 × trainer: 8 CPU, {make_status().sizing.memory}, "
        f"/dev/shm {make_status().sizing.shm}, "
        "1 GPU(s)",
        f"    1 × head: 4 CPU, {make_status().sizing.pods[1].memory}, /dev/shm 3Gi",
        f"    1 × preflight: 1 CPU, {make_status().sizing.pods[2].memory}",
    ]
    titles = [line for line in sizing if line.startswith("  terms: ")]
    assert "  terms: /dev/shm of the head" in titles
    assert len(titles) == len(set(titles))
    terms = sizing[sizing.index("  terms: /dev/shm per pod") + 1 :][:6]
    reason = "2.0 GiB / 0.95, as Ray uses at most 95 % of /dev/shm"
    assert terms[0] == f"    rayObjectStore     2.1 GiB  {reason}"
    assert terms[1] == "    weightSync        42.5 GiB  3 copies of the engine's weights"


def test_wrapped_term_reasons_stay_in_their_column() -> None:
    lines = render_status(make_status(), width=60, with_sizing=True).splitlines()
    first = lines.index(next(line for line in lines if line.startswith("    staging ")))
    column = lines[first].index("maximum of")
    assert lines[first + 1].startswith(" " * column)
    assert lines[first + 1][column] != " "
    following = lines[first + 1].split()[0]
    assert len(lines[first]) <= 60 < len(f"{lines[first]} {following}")


@pytest.mark.parametrize("width", range(48, 64))
def test_status_text_does_not_break_words_at_hyphens(width: int) -> None:
    hyphens = Condition(
        type=ConditionType.FAILED, status="True", reason="NodeLost", message="held-out " * 20
    )
    status = replace(make_status(), conditions=[hyphens])
    text = render_status(status, width=width, with_sizing=True)
    assert "--shm-size=1g" in text.split()
    assert text.split().count("held-out") == 20
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("first", ["a", "aa"])
def test_status_text_default_width_is_100(first: str) -> None:
    words = Condition(
        type=ConditionType.PROGRESSING, status="True", reason=first, message="a " * 200
    )
    status = replace(make_status(), conditions=[words])
    assert render_status(status) == render_status(status, width=100)


def test_wrapped_pod_lines_are_indented() -> None:
    lines = render_status(make_status(), width=48, with_sizing=True).splitlines()
    [first] = [n for n, line in enumerate(lines) if line.startswith("    1 × trainer:")]
    assert lines[first + 1].startswith("      ")
    assert lines[first + 1][6] != " "


def test_status_of_job_without_learning_differs_from_success() -> None:
    condition = Condition(
        type=ConditionType.NOT_LEARNING,
        status="True",
        reason="ZeroVariance",
        message="100 % of groups have equal rewards since step 1",
    )
    status = replace(make_status(), phase=Phase.SUCCEEDED, conditions=[condition])

    shown = render_status(status).splitlines()

    assert "phase     Succeeded, NotLearning (ZeroVariance)" in shown
    assert "learning  no: 100 % of groups have equal rewards since step 1" in shown
    cleared = replace(condition, status="False", reason="Learning", message="")
    assert "learning  " not in render_status(replace(status, conditions=[cleared]))
