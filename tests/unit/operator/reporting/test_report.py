import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raggrpo_api.status.attempts import AttemptRecord, Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus, PreflightStatus, ProgressStatus
from raggrpo_api.trainer.history import history_file
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState
from raggrpo_api.trainer.progress import Segment
from raggrpo_cli.main import app
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.reporting.report import write_report
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.http.call_statistics import CallSummary
from raggrpo_trainer.progress.metric_sinks import JsonLines
from support.builders.operator.jobs import KNOWN_7B, make_job
from support.builders.operator.runs import log_dir_of, make_job_folder, write_steps
from support.builders.trainer.reports import make_step

VOID = {"meta", "br"}


class _Page(HTMLParser):
    """Collects texts and checks that all elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    assert page.open == []
    return page


def make_validation(when: str, step: int, exact_match: float) -> dict[str, Any]:
    numbers = {"reward_mean": 0.4, "control_exact_match": 0.02, "num_samples": 64, "num_failed": 0}
    event = {"event": "validation", "when": when, "step": step, "exact_match": exact_match}
    return event | numbers


def make_status(**changes: Any) -> JobStatus:
    attempts = [
        AttemptRecord(
            number=2, tier=Tier.WARM_CLUSTER, cause=Cause.SUCCEEDED, from_step=20, to_step=60
        ),
        AttemptRecord(
            number=1,
            cause=Cause.TRAINER_RANK_LOST,
            message="rank 0 <gone>",
            from_step=0,
            to_step=25,
            lost_steps=5,
        ),
    ]
    progress = ProgressStatus(step=60, total_steps=60)
    return JobStatus(phase=Phase.SUCCEEDED, progress=progress, attempts=attempts, **changes)


@pytest.mark.row("A35")
def test_report_shows_results_attempts_and_charts(tmp_path: Path) -> None:
    write_steps(
        tmp_path, 1, range(1, 26), {"reward_mean": 0.125}, [make_validation("before", 0, 0.1)]
    )
    write_steps(
        tmp_path, 2, range(21, 61), {"reward_mean": 0.75}, [make_validation("after", 60, 0.9)]
    )
    status = make_status(effective_training_time_ratio="0.83")
    page = read(write_report(tmp_path, tmp_path, status, name="sales-rag"))

    assert "sales-rag" in page.texts
    assert page.texts[page.texts.index("Effective training time ratio") + 1] == "0.83"
    assert "5" in page.texts, "steps that attempt 1 lost"
    assert "0.125 → 0.75" in page.texts
    assert "0.1 → 0.9" in page.texts
    for text in ("TrainerRankLost", "rank 0 <gone>", "WarmCluster, c1", "Reward", "Step time"):
        assert text in page.texts
    assert any("logprob" in text for text in page.texts)


def test_report_is_self_contained(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, range(1, 4))
    path = write_report(tmp_path, tmp_path, make_status())
    assert read(path).addresses == []
    assert not re.search(r"https?://|url\(|@import|<script", path.read_text())
    assert "prefers-color-scheme: dark" in path.read_text()


def test_report_escapes_user_text(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    attempts = [AttemptRecord(number=1, cause=Cause.PROGRAM_ERROR, message=attack)]
    path = write_report(tmp_path, tmp_path, JobStatus(attempts=attempts), name=attack)
    assert "<script" not in path.read_text()
    assert attack in read(path).texts


@pytest.mark.parametrize("status", [JobStatus(), make_status()])
def test_report_is_rendered_without_history(tmp_path: Path, status: JobStatus) -> None:
    page = read(write_report(tmp_path, tmp_path / "missing", status))
    assert "no data yet" in page.texts


def test_report_shows_origins_and_sizing_terms(tmp_path: Path) -> None:
    resolved = resolve(make_job({"rollout.n": 7}))
    status = make_status(sizing=size(resolved.spec, KNOWN_7B))
    texts = read(write_report(tmp_path, tmp_path, status, resolved=resolved)).texts

    place = texts.index("rollout.n")
    assert texts[place : place + 3] == ["rollout.n", "7", "user"]
    place = texts.index("algorithm.groupSize")
    assert texts[place : place + 3] == ["algorithm.groupSize", "7", "coupled"]
    assert "rayObjectStore" in texts


def test_report_shows_newest_validation_after_target_is_raised(tmp_path: Path) -> None:
    events = [make_validation("before", 0, 0.1), make_validation("after", 30, 0.5)]
    write_steps(tmp_path, 1, range(1, 31), events=events)
    write_steps(tmp_path, 2, range(31, 61), events=[make_validation("after", 60, 0.9)])
    assert "0.1 → 0.9" in read(write_report(tmp_path, tmp_path, make_status())).texts


def test_report_has_retrieval_table_when_calls_exist(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, range(1, 3))
    assert "Retrieval" not in read(write_report(tmp_path, tmp_path, make_status())).texts
    calls = CallSummary(7, 0.1, 0.25, 0.3, {FailureCause.TIMEOUT: 2, FailureCause.BAD_JSON: 1}, 4)
    silent = CallSummary(0, math.nan, math.nan, math.nan, {FailureCause.DNS_FAILURE: 4})
    write_steps(tmp_path, 2, range(3, 5), {"retrieval": {"kb": calls, "other": silent}})

    texts = read(write_report(tmp_path, tmp_path, make_status())).texts
    place = texts.index("kb")
    assert texts[place : place + 6] == ["kb", "7", "Timeout 2, BadJson 1", "4", "0.1", "0.25"]
    assert texts[place + 6 : place + 12] == ["other", "0", "DnsFailure 4", "0", "–", "–"]


def test_report_shows_changed_values_by_segment(tmp_path: Path) -> None:
    segment = Segment(first_step=21, changes=["rollout.n: 5 → 3", "data.trainBatchSize: 8 → 4"])
    write_steps(tmp_path, 1, range(1, 26))

    page = read(write_report(tmp_path, tmp_path, make_status(segments=[segment])))

    position = page.texts.index("Segments")
    assert "21" in page.texts[position:]
    assert "rollout.n: 5 → 3; data.trainBatchSize: 8 → 4" in page.texts


def test_report_has_memory_chart_when_measured(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, range(1, 4))
    assert "Host memory" not in read(write_report(tmp_path, tmp_path, make_status())).texts

    (tmp_path / "metrics.e1.jsonl").write_text(
        '{"step": 1, "epoch": 1, "step_seconds": 1, "seconds": {}, "retrieval": {},'
        ' "num_samples": 1, "num_sampled_tokens": 1, "host_memory_bytes": 1073741824}\n'
    )
    assert "Host memory" in read(write_report(tmp_path, tmp_path, make_status())).texts


def test_report_command_writes_page_and_prints_path(tmp_path: Path) -> None:
    folder = make_job_folder(tmp_path / "job", make_status())
    write_steps(log_dir_of(folder), 1, range(1, 31))
    result = CliRunner().invoke(app, ["report", "--dir", str(folder)])

    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(folder / "report.html")
    assert "60 of 60" in read(folder / "report.html").texts


@pytest.mark.parametrize("arguments", [["report", "--dir"], ["compare", "/nowhere"]])
def test_report_and_compare_reject_folder_without_job(tmp_path: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [*arguments, str(tmp_path)])
    assert result.exit_code == 2
    assert "is not a job folder" in result.stderr
    assert "raggrpo run" in result.stderr


@pytest.mark.row("A17", "A35")
def test_compare_shows_two_runs_side_by_side(tmp_path: Path) -> None:
    slow = make_job_folder(tmp_path / "slow", make_status(), {"rollout.temperature": 0.9})
    fast = make_job_folder(tmp_path / "fast", make_status(), {"rollout.temperature": 0.5})
    write_steps(log_dir_of(slow), 1, range(1, 21), events=[make_validation("after", 20, 0.4)])
    halved = {"seconds": {"train": 1.0}, "step_seconds": 2.0, "reward_mean": 0.5}
    write_steps(log_dir_of(fast), 1, range(1, 21), halved, [make_validation("after", 20, 0.8)])

    result = CliRunner().invoke(app, ["compare", str(slow), str(fast)])

    rows = {line[:36].strip(): line[36:].split() for line in result.stdout.splitlines()}
    assert result.exit_code == 0, result.output
    assert rows["seconds per sample"] == ["0.5", "0.25", "-50", "%"]
    assert rows["stage train"] == ["2", "1", "-50", "%"]
    assert rows["step"] == ["4", "2", "-50", "%"]
    assert rows["reward, last 10 steps"] == ["0.25", "0.5", "+100", "%"]
    assert rows["held-out exact match after"] == ["0.4", "0.8", "+100", "%"]
    assert rows["rollout.temperature"] == ["0.9", "0.5"]
    assert "checkpoint.path" not in rows
    assert "rollout.n" not in rows
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.row("A16")
def test_compare_reports_equal_configurations(tmp_path: Path) -> None:
    one, two = (make_job_folder(tmp_path / name, JobStatus()) for name in ("one", "two"))
    result = CliRunner().invoke(app, ["compare", str(one), str(two)])
    assert result.stdout.splitlines()[-2:] == ["Set differently", "none"]


def test_report_of_job_without_learning_differs_from_success(tmp_path: Path) -> None:
    condition = Condition(
        type=ConditionType.NOT_LEARNING,
        status="True",
        reason="NoRewardSignal",
        message="100 % of completions have reward 0 since step 1: see <answer>",
    )
    status = make_status(conditions=[condition])

    html = write_report(tmp_path, tmp_path, status).read_text()

    assert '<span class="bad">Succeeded, NotLearning (NoRewardSignal)</span>' in html
    assert "NotLearning: NoRewardSignal</h2><p>100 % of completions have reward 0" in html
    assert "<answer>" not in html
    assert (
        '<span class="good">Succeeded</span>'
        in write_report(tmp_path, tmp_path, make_status()).read_text()
    )


def test_failed_report_starts_with_reason_and_remedy(tmp_path: Path) -> None:
    failed = Condition(
        type=ConditionType.FAILED, status="True", reason=Cause.NON_FINITE, message="loss is NaN"
    )
    status = JobStatus(phase=Phase.FAILED, conditions=[failed])
    texts = read(write_report(tmp_path, tmp_path, status)).texts

    place = texts.index("Failed: NonFinite")
    assert texts[place + 1] == "loss is NaN"
    assert "Lower `training.learningRate`" in texts[place + 2]
    assert place < texts.index("Step")


def test_report_of_failed_preflight_shows_failed_checks(tmp_path: Path) -> None:
    checks = [
        Check(id=CheckId.DATA_READABLE, state=CheckState.FAILED, evidence="line 7 has no prompt"),
        Check(id=CheckId.PATHS, state=CheckState.PASSED, evidence="all exist"),
    ]
    failed = Condition(
        type=ConditionType.FAILED, status="True", reason=Cause.PREFLIGHT_FAILED, message="failed"
    )
    status = JobStatus(
        phase=Phase.FAILED, conditions=[failed], preflight=PreflightStatus(checks=checks)
    )
    html = write_report(tmp_path, tmp_path, status).read_text()
    problem = html[html.index("Failed: PreflightFailed") : html.index("</section>")]

    assert "line 7 has no prompt" in problem
    assert "all exist" not in problem


def test_successful_report_shows_no_problem(tmp_path: Path) -> None:
    ended = [
        Condition(type=ConditionType.COMPLETE, status="True", reason="TargetReached"),
        Condition(type=ConditionType.CLUSTER_READY, status="False", reason="Complete"),
    ]
    html = write_report(tmp_path, tmp_path, make_status(conditions=ended)).read_text()
    assert "<section" not in html


def test_report_charts_reward_terms_and_shares(tmp_path: Path) -> None:
    changes = {"reward_parts": {"F1": 0.5, "Format": 1.0}, "zero_variance": 0.25, "kl": 0.01}
    write_steps(tmp_path, 1, range(1, 12), changes)
    texts = read(write_report(tmp_path, tmp_path, make_status())).texts

    assert "Reward by term (without weights, mean of 10 steps)" in texts
    assert {"F1 0.5", "Format 1", "groups without variance 0.25"} <= set(texts)
    for title in ("Response length", "Entropy of the sampled tokens"):
        assert title in texts
    assert "KL divergence from the reference" in texts


def test_report_omits_charts_without_values(tmp_path: Path) -> None:
    changes = {"reward_parts": {"F1": 0.5}, "kl": 0.0, "exact_match": None}
    write_steps(tmp_path, 1, range(1, 12), changes)
    text = "\n".join(read(write_report(tmp_path, tmp_path, make_status())).texts)

    assert "Reward by term" not in text
    assert "KL divergence" not in text
    assert "exact match" not in text.lower()


def test_exact_match_is_not_charted_twice_if_it_is_the_reward(tmp_path: Path) -> None:
    write_steps(tmp_path, 1, range(1, 12), {"reward_mean": 0.5, "exact_match": 0.5})
    texts = read(write_report(tmp_path, tmp_path, make_status())).texts
    assert not any(text.startswith("exact match, mean") for text in texts)
    write_steps(tmp_path, 2, range(12, 14), {"reward_mean": 0.75, "exact_match": 0.5})
    texts = read(write_report(tmp_path, tmp_path, make_status())).texts
    assert any(text.startswith("exact match, mean") for text in texts)


def test_compare_of_one_job_requires_segments(tmp_path: Path) -> None:
    folder = make_job_folder(tmp_path / "job", make_status(segments=[Segment(first_step=11)]))
    write_steps(log_dir_of(folder), 1, range(1, 11))
    early = CliRunner().invoke(app, ["compare", str(folder)])
    write_steps(log_dir_of(folder), 2, range(11, 21))
    compared = CliRunner().invoke(app, ["compare", str(folder)])

    assert early.exit_code == 2
    assert "has steps of one segment only: specify two jobs" in early.stderr
    assert compared.exit_code == 0
    assert "steps 11 to" in compared.stdout


@pytest.mark.row("A17")
def test_report_shows_phases_shares_and_memory_of_gpu(tmp_path: Path) -> None:
    seconds = {"data": 1.0, "train": 2.0}
    device = {
        "device_memory_bytes": 2**30,
        "device_memory_reserved_bytes": 2**31,
        "device_utilization": 0.75,
    }
    lines = JsonLines(history_file(tmp_path, 1), {"epoch": 1, "attempt": 1})
    for step in (1, 2):
        lines.write_step("2026-01-01T00:00:00+00:00", make_step(step, seconds=seconds), device)

    texts = set(read(write_report(tmp_path, tmp_path, make_status())).texts)

    assert "Training by phase (slowest rank)" in texts
    assert "Data loading and training, share of the step" in texts
    assert "GPU utilization (lowest of the ranks)" in texts
    assert {"data 1", "data, % 25", "forward, % 20"} <= texts
    assert {"allocated, GiB 1", "reserved, GiB 2", "% 75"} <= texts
