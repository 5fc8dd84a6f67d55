import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from raggrpo_api.limits import MAX_PROGRESS_BYTES
from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_api.spec.monitoring import MonitoringSpec
from raggrpo_api.trainer.history import read_events, read_history
from raggrpo_api.trainer.learning import NotLearningReason, Streak
from raggrpo_api.trainer.progress import (
    CheckpointRef,
    EndpointOutage,
    Failure,
    Progress,
    SkippedCheckpoint,
    Stage,
)
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.checkpoint.backup_thread import BackupOutcome
from raggrpo_trainer.checkpoint.folder import Checkpoint, Marker
from raggrpo_trainer.host.device_peaks import peak_tflops
from raggrpo_trainer.host.host_memory import host_memory_bytes
from raggrpo_trainer.http.call_statistics import CallSummary
from raggrpo_trainer.progress.metric_sinks import JsonLines, PrometheusText, is_logged
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.progress.step_probes import (
    DEVICE_METRICS,
    Probe,
    device_probe,
    flops_probe,
    host_memory_probe,
    weight_update_probe,
)
from raggrpo_trainer.progress.step_record import retrieval_scalars
from support.builders.trainer.checkpoints import make_meta
from support.builders.trainer.reports import Published, make_config, make_step


def load_tensorboard(log_dir: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(log_dir / "tensorboard"))
    accumulator.Reload()
    return accumulator


def steps_of(log_dir: Path, tag: str) -> list[int]:
    return [event.step for event in load_tensorboard(log_dir).Scalars(tag)]


@pytest.mark.row("A23")
def test_seconds_per_step_uses_history_window(tmp_path: Path) -> None:
    durations = [1.0] * 30 + [5.0] * 11
    for window, pace in ((None, 5.0), (50, 1.0), (1, 5.0)):
        published = Published()
        changes = {} if window is None else {"monitoring.historyWindow": window}
        reporter = Reporter(make_config(tmp_path, changes), 3, publish=published)
        for step, seconds in enumerate(durations, 1):
            reporter.report_step(make_step(step, step_seconds=seconds))
        reporter.close()
        assert published.progresses[-1].seconds_per_step == pace


def test_weight_update_ratio_is_reported_when_measured(tmp_path: Path) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 3, publish=published)
    for step in range(9, 12):
        reporter.report_step(make_step(step, weight_update_ratio=1e-3 if step == 10 else None))
    reporter.close()

    result = [each.get("weight_update_ratio") for each in read_history(tmp_path / "logs")]
    assert result == [None, 1e-3, None]
    shown = {metric.name: metric.value for metric in published.progresses[-1].metrics}
    assert shown["weight_update_ratio"] == "0.001"
    assert "raggrpo_weight_update_ratio" in published.metrics[-1]


@pytest.mark.row("B15")
def test_progress_has_stage_step_pace_and_metrics(tmp_path: Path) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 3, publish=published)

    reporter.report_resume(4)
    reporter.report_stage(Stage.TRAINING)
    for step, seconds in ((5, 1.0), (6, 9.0), (7, 2.0)):
        reporter.report_step(make_step(step, step_seconds=seconds, reward_mean=step / 10))
    reporter.close()

    last = published.progresses[-1]
    assert (last.attempt, last.epoch, last.stage) == (1, 3, Stage.TRAINING)
    assert (last.step, last.total_steps, last.started_from_step) == (7, 100, 4)
    assert last.seconds_per_step == 2.0
    assert {m.name: m.value for m in last.metrics}["reward_mean"] == "0.7"


def test_seconds_per_step_is_median_of_recent_steps(tmp_path: Path) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 1, publish=published)
    for step in range(1, 31):
        reporter.report_step(make_step(step, step_seconds=100.0 if step <= 10 else 1.0 + step % 3))
    reporter.close()

    assert published.progresses[-1].seconds_per_step == 2.0


@pytest.mark.parametrize(("later", "reported"), [([], (10, "down")), ([30], (30, ""))])
def test_failed_backup_is_reported_until_success(
    tmp_path: Path, later: list[int], reported: tuple[int, str]
) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 1, publish=published)
    reporter.report_backups([BackupOutcome(10), BackupOutcome(20, "down")])
    reporter.report_backups([BackupOutcome(step) for step in later])
    reporter.close()

    last = published.progresses[-1]
    assert (last.backup_step, last.backup_failure) == reported


def test_seconds_by_stage_are_medians(tmp_path: Path) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 1, publish=published)
    for step, seconds in enumerate((1.0, 9.0, 2.0), start=1):
        parts = {"generate": seconds, "train": 1.0}
        reporter.report_step(make_step(step, seconds=parts, step_seconds=seconds + 1.5))
    reporter.close()

    parts = {"generate": 2.0, "train": 1.0, "other": 0.5}
    assert published.progresses[-1].seconds_by_stage == parts


def test_tokens_by_stage_are_medians(tmp_path: Path) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 1, publish=published)
    for step, tokens in enumerate((100, 900, 200), start=1):
        record = make_step(step, num_sampled_tokens=tokens, num_trained_tokens=tokens // 2)
        reporter.report_step(record)
    reporter.close()

    assert published.progresses[-1].tokens_by_stage == {"generate": 200, "train": 100}


def test_not_learning_is_logged_and_recorded_until_it_no_longer_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published = Published()
    reporter = Reporter(
        make_config(tmp_path, {"monitoring.historyWindow": 3}), 3, publish=published
    )
    example = {NotLearningReason.ALL_TRUNCATED: "sample 0/0 has reward 0: 'on and on'"}
    with caplog.at_level(logging.INFO):
        for step, truncated in enumerate((0.5, 1.0, 1.0, 1.0, 1.0), start=1):
            reporter.report_step(make_step(step, truncated=truncated, examples=example))
        [streak] = published.wait_for(lambda progress: progress.step == 5).streaks
        reporter.report_step(make_step(6, truncated=0.5))
    reporter.close()

    assert (streak.reason, streak.since, streak.share) == ("AllTruncated", 2, 1.0)
    assert published.progresses[-1].streaks == []
    events = [each for each in read_events(tmp_path / "logs") if each["event"] == "learning"]
    assert [(each["step"], each["reason"]) for each in events] == [(4, "AllTruncated"), (6, "")]
    assert events[0]["message"].endswith("example: sample 0/0 has reward 0: 'on and on'")
    assert "the run is not learning (AllTruncated): 100 % of completions" in caplog.text
    assert "the run is learning again" in caplog.text


def test_resumed_attempt_records_only_change_of_learning(tmp_path: Path) -> None:
    reporter = Reporter(make_config(tmp_path), 3, publish=Published())
    reporter.report_resume(30, streaks=[Streak(reason="AllTruncated", since=2, share=1.0)])
    reporter.report_step(make_step(31, truncated=1.0))
    reporter.report_step(make_step(32, truncated=0.5))
    reporter.close()

    events = [each for each in read_events(tmp_path / "logs") if each["event"] == "learning"]
    assert [(each["step"], each["reason"]) for each in events] == [(32, "")]


def test_shares_are_in_history_and_metrics(tmp_path: Path) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 3, publish=published)
    reporter.report_step(make_step(1, truncated=0.25, parsed=0.75, zero_reward=0.5))
    reporter.close()

    [record] = read_history(tmp_path / "logs")
    assert (record["truncated"], record["parsed"], record["zero_reward"]) == (0.25, 0.75, 0.5)
    page = published.metrics[-1]
    assert 'raggrpo_truncated{job="small"} 0.25' in page
    assert 'raggrpo_parsed{job="small"} 0.75' in page
    assert 'raggrpo_zero_variance{job="small"} 0.5' in page


@pytest.mark.row("A10")
def test_current_stage_time_grows_between_reports(tmp_path: Path) -> None:
    published = Published()
    now = [100.0]
    reporter = Reporter(make_config(tmp_path), 1, publish=published, clock=lambda: now[0])
    reporter.report_stage(Stage.LOADING_MODEL)
    published.wait_for(lambda p: p.stage is Stage.LOADING_MODEL)
    now[0] = 130.0

    published.wait_for(lambda p: p.stage_seconds == 30.0)
    reporter.close()


def test_repeated_stage_report_does_not_reset_stage_time(tmp_path: Path) -> None:
    published = Published()
    now = [0.0]
    reporter = Reporter(make_config(tmp_path), 1, publish=published, clock=lambda: now[0])
    reporter.report_stage(Stage.TRAINING)
    now[0] = 5.0
    reporter.report_stage(Stage.TRAINING)
    reporter.close()

    assert published.progresses[-1].stage_seconds == 5.0


def test_outage_is_reported_as_stage_nested_in_interrupted_stage(
    tmp_path: Path,
) -> None:
    published = Published()
    now = [0.0]
    config = make_config(tmp_path)
    log_dir = Path(config.monitoring.log_dir)
    reporter = Reporter(config, 1, publish=published, clock=lambda: now[0])
    outage = EndpointOutage(name="endpoint kb", since="2026-11-21T12:00:00Z", cause="Timeout")
    reporter.report_stage(Stage.TRAINING)
    now[0] = 5.0
    reporter.report_outages([outage])
    now[0] = 605.0
    during = published.wait_for(lambda progress: progress.waited_seconds == 600.0)
    reporter.report_outages([])
    now[0] = 607.0
    reporter.close()

    assert (during.stage, during.waiting_for) == (Stage.WAITING_FOR_ENDPOINT, [outage])
    after = published.progresses[-1]
    assert (after.stage, after.waiting_for, after.waited_seconds) == (Stage.TRAINING, [], 600.0)
    assert after.stage_seconds == 2.0
    assert 'raggrpo_waited_seconds{job="small"} 600.0' in published.metrics[-1]
    stages = [(e["left"], e["seconds"]) for e in read_events(log_dir) if e["event"] == "stage"]
    assert stages == [("Connecting", 0.0), ("Training", 5.0), ("WaitingForEndpoint", 600.0)]


def test_checkpoints_pinned_values_and_failure_are_published(tmp_path: Path) -> None:
    published = Published()
    reporter = Reporter(make_config(tmp_path), 1, publish=published)
    ref = CheckpointRef(step=10, path="/c/step_00000010.e1")

    reporter.report_resume(5, ref, None, [SkippedCheckpoint(path="/c/x", reason="torn")])
    reporter.report_pinned({"precision": "FP32"})
    marker = Marker(10, 1, 1, 1, "", "", 0.8125, {}, BestBy.VALIDATION_EXACT_MATCH)
    reporter.report_save(ref, 1.5, Checkpoint(tmp_path, marker, make_meta(10)))
    reporter.close(Failure(exit_code=14, message="loss is NaN"))

    last = published.progresses[-1]
    assert last.checkpoint == ref
    assert (last.best_step, last.save_seconds) == (10, 1.5)
    assert last.best_score == "ValidationExactMatch 0.8125"
    assert [s.reason for s in last.skipped_checkpoints] == ["torn"]
    assert last.pinned == {"precision": "FP32"}
    assert last.failure == Failure(exit_code=14, message="loss is NaN")


def test_engine_replacements_are_logged_once_and_newest_is_reported(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    published = Published()
    reporter = Reporter(config, 1, publish=published)
    messages = [f"engine {number} was lost" for number in range(20)]

    reporter.report_replacements(messages[:1])
    reporter.report_replacements(messages[:1])
    reporter.report_replacements(messages)
    reporter.report_replacements(messages)
    reporter.close()

    events = read_events(Path(config.monitoring.log_dir))
    assert [r["message"] for r in events if r["event"] == "in_place"] == messages
    assert published.progresses[-1].in_place == messages[-16:]


def test_progress_size_is_bounded_for_any_report(tmp_path: Path) -> None:
    sizes: list[int] = []
    reporter = Reporter(make_config(tmp_path), 1, publish=lambda p, _: sizes.append(len(p)))
    skipped = [SkippedCheckpoint(path="/c" * 500, reason="r" * 200)] * 100
    reporter.report_resume(0, skipped=skipped)
    reporter.report_step(make_step(1))
    reporter.close(Failure(exit_code=1, message="m" * 1000))

    assert max(sizes) < MAX_PROGRESS_BYTES


@pytest.mark.row("A17", "A29")
def test_history_has_all_steps_with_consistent_seconds(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    reporter = Reporter(config, 2, publish=Published())

    for step in range(1, 41):
        reporter.report_step(make_step(step))
    reporter.close()

    history = read_history(Path(config.monitoring.log_dir))
    assert [r["step"] for r in history] == list(range(1, 41))
    assert {(r["epoch"], r["attempt"]) for r in history} == {(2, 1)}
    assert sum(history[0]["seconds"].values()) == history[0]["step_seconds"] == 4.0
    assert history[0]["samples_per_second"] == 2.0
    assert history[0]["tokens_per_second"] == 16.0


def test_history_has_events_of_attempt(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    now = [0.0]
    reporter = Reporter(config, 1, publish=Published(), clock=lambda: now[0])

    reporter.report_stage(Stage.LOADING_MODEL)
    now[0] = 7.0
    reporter.report_resume(0)
    reporter.report_stage(Stage.TRAINING)
    reporter.report_step(make_step(1))
    reporter.report_save(CheckpointRef(step=1, path="/c/1"), 0.5, None)
    reporter.report_validation("after", 1, make_validation())
    reporter.close(Failure(exit_code=75, message="stopped"))

    events = {r["event"]: r for r in read_events(Path(config.monitoring.log_dir))}
    assert set(events) == {"start", "stage", "resume", "checkpoint", "validation", "end"}
    assert (events["stage"]["left"], events["stage"]["seconds"]) == ("LoadingModel", 7.0)
    assert (events["validation"]["when"], events["validation"]["exact_match"]) == ("after", 0.5)
    assert (events["end"]["exit_code"], events["end"]["step"]) == (75, 1)


def make_validation() -> Any:
    from raggrpo_trainer.exchange.validation_result import ValidationResult

    return ValidationResult(
        exact_match=0.5, reward_mean=0.6, num_samples=10, num_failed=0, control_exact_match=0.1
    )


def test_light_mode_writes_event_files_at_intervals(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, {"monitoring.logEverySteps": 10, "monitoring.performanceEverySteps": 4}
    )
    log_dir = Path(config.monitoring.log_dir)
    reporter = Reporter(config, 1, publish=Published())

    for step in range(1, 21):
        reporter.report_step(make_step(step))
    reporter.close()

    assert steps_of(log_dir, "reward_mean") == [10, 20]
    assert steps_of(log_dir, "seconds/train") == [4, 8, 12, 16, 20]
    assert load_tensorboard(log_dir).Scalars("reward/ExactMatch")[0].value == 0.25


def test_full_mode_writes_event_files_at_each_step(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"monitoring.mode": "Full"})
    reporter = Reporter(config, 1, publish=Published())
    for step in range(1, 6):
        reporter.report_step(make_step(step))
    reporter.close()

    assert steps_of(Path(config.monitoring.log_dir), "reward_mean") == [1, 2, 3, 4, 5]


@pytest.mark.row("A23")
def test_off_mode_keeps_progress_history_and_events(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"monitoring.mode": "Off"})
    log_dir = Path(config.monitoring.log_dir)
    published = Published()
    reporter = Reporter(config, 1, publish=published)
    reporter.report_step(make_step(1))
    reporter.close()

    assert published.progresses[-1].step == 1
    [step] = read_history(log_dir)
    assert step["host_memory_bytes"] > 0
    assert [r["event"] for r in read_events(log_dir)] == ["start", "end"]
    assert not (log_dir / "tensorboard").exists()


@pytest.mark.row("A23")
def test_metric_probes_run_only_when_due(tmp_path: Path) -> None:
    measured: list[int] = []

    def read(record: Any) -> dict[str, float]:
        measured.append(record.step)
        return {"probe_value": 1.0}

    config = make_config(tmp_path)
    reporter = Reporter(config, 1, publish=Published())
    reporter.add_probe(Probe(5, read))
    for step in range(1, 13):
        reporter.report_step(make_step(step))
    reporter.close()

    history = read_history(Path(config.monitoring.log_dir))
    assert measured == [1, 5, 10]
    assert [r["step"] for r in history if "probe_value" in r] == [1, 5, 10]


def test_device_memory_is_reported_at_interval_on_gpus(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"monitoring.gpuEverySteps": 2})
    log_dir = Path(config.monitoring.log_dir)
    published = Published()
    reporter = Reporter(config, 1, publish=published)

    for step in range(1, 5):
        memory = {
            "device_memory_bytes": step * 1000,
            "device_memory_reserved_bytes": step * 1500,
        }
        reporter.report_step(make_step(step, **memory))
    for step in range(5, 7):
        reporter.report_step(make_step(step))
    reporter.close()

    shown = [(r["step"], r.get("device_memory_bytes")) for r in read_history(log_dir)]
    assert shown == [(1, 1000), (2, 2000), (3, None), (4, 4000), (5, None), (6, None)]
    assert steps_of(log_dir, "device_memory_bytes") == [2, 4]
    assert read_history(log_dir)[1]["device_memory_reserved_bytes"] == 3000
    assert steps_of(log_dir, "device_memory_reserved_bytes") == [2, 4]
    assert "raggrpo_device_memory_bytes" in published.metrics[-1]


@pytest.mark.row("A17")
def test_phases_and_shares_are_in_history_and_tensorboard(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"monitoring.mode": "Full"})
    log_dir = Path(config.monitoring.log_dir)
    reporter = Reporter(config, 1, publish=Published())
    reporter.report_step(make_step(1, forward_seconds=1.0, step_seconds=5.0))
    reporter.close()

    (record,) = read_history(log_dir)
    assert record["forward_seconds"] == 1.0
    assert record["shares"]["forward"] == 0.2
    assert record["shares"]["train"] == 0.4
    assert sum(record["shares"][stage] for stage in record["seconds"]) == pytest.approx(1.0)
    for name in ("forward_seconds", "share/forward", "seconds/data", "share/data"):
        assert steps_of(log_dir, name) == [1]


@pytest.mark.row("A26")
def test_rank_memory_is_reported_with_driver_memory(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"monitoring.performanceEverySteps": 2})
    published = Published()
    reporter = Reporter(config, 1, publish=published)
    for step in range(1, 4):
        reporter.report_step(make_step(step, rank_memory_bytes=step * 1000))
    reporter.close()

    shown = {metric.name: float(metric.value) for metric in published.progresses[-1].metrics}
    assert shown["rank_memory_bytes"] == 2000
    assert shown["host_memory_bytes"] > 10 * 2**20
    assert steps_of(Path(config.monitoring.log_dir), "rank_memory_bytes") == [2]


@pytest.mark.row("A34")
def test_unwritable_log_folder_does_not_stop_training(tmp_path: Path) -> None:
    blocked = tmp_path / "logs"
    blocked.write_text("a file where the folder should be")
    published = Published()
    reporter = Reporter(make_config(tmp_path), 1, publish=published)

    for step in range(1, 4):
        reporter.report_step(make_step(step))
    reporter.close()

    last = published.progresses[-1]
    assert last.step == 3
    assert {m.name: m.value for m in last.metrics}["lost_log_records"] == "5"
    assert "raggrpo_lost_log_records_total" in published.metrics[-1]


def test_reporting_thread_crash_is_raised_in_training_loop(tmp_path: Path) -> None:
    def publish(progress: bytes, metrics: bytes) -> None:
        raise ZeroDivisionError

    reporter = Reporter(make_config(tmp_path), 1, publish=publish)

    with pytest.raises(RuntimeError, match="reporting thread") as raised:
        reporter.close()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_non_finite_metrics_are_written_as_null(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    reporter = Reporter(config, 1, publish=Published())
    reporter.report_step(make_step(1, loss=math.nan, grad_norm=math.inf, reward_mean=None))
    reporter.close()

    [record] = read_history(Path(config.monitoring.log_dir))
    assert (record["loss"], record["grad_norm"]) == (None, None)
    assert "reward_mean" not in record


KILLED = """
import sys
from pathlib import Path
from support.builders.trainer.reports import make_config, make_step
from raggrpo_trainer.progress.reporter import Reporter

def publish(progress, metrics):
    if b'"step":3' in progress:
        print("published", flush=True)

reporter = Reporter(make_config(Path(sys.argv[1])), 1, publish=publish)
for step in (1, 2, 3):
    reporter.report_step(make_step(step))
sys.stdin.read()
"""


def test_published_steps_are_in_history_after_kill(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"published\n"

    child.kill()
    child.communicate()

    assert [r["step"] for r in read_history(tmp_path / "logs")] == [1, 2, 3]


@pytest.mark.row("A26")
def test_history_records_every_tenth_step_after_limit(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.e1.jsonl", {}, limit=5000)
    for step in range(1, 1001):
        lines.write_step("", make_step(step), {})
        lines.write_event("", {"event": "checkpoint", "step": step})
    lines.write_event("", {"event": "end", "step": 1001})

    steps = [r["step"] for r in read_history(tmp_path)]
    assert steps[:3] == [1, 2, 3]
    assert steps[-1] == 1000
    assert (tmp_path / "metrics.e1.jsonl").stat().st_size < 4 * 5000
    assert read_events(tmp_path)[-1]["event"] == "end"


@pytest.mark.parametrize(
    ("step", "written", "kept"),
    [(7, 99, True), (7, 100, False), (10, 100, True), (10, 200, False), (100, 299, True)],
)
def test_history_stride_grows_tenfold_at_size_limit(step: int, written: int, kept: bool) -> None:
    assert is_logged(step, written, limit=100) is kept


@pytest.mark.row("B26")
def test_prometheus_text_contains_stages_calls_and_metrics() -> None:
    calls = CallSummary(7, 0.1, 0.2, 0.3, {FailureCause.TIMEOUT: 2})
    progress = Progress(attempt=2, stage=Stage.TRAINING, step=5, total_steps=9)
    text = PrometheusText("demo").render(progress, make_step(5, retrieval={"kb": calls}), {}, 0)

    lines = text.decode().splitlines()
    assert 'raggrpo_step{job="demo"} 5.0' in lines
    assert 'raggrpo_reward_mean{job="demo"} 0.25' in lines
    assert 'raggrpo_step_seconds{job="demo",stage="train"} 2.0' in lines
    assert 'raggrpo_step_seconds{job="demo",stage="other"} 0.25' in lines
    assert 'raggrpo_step_seconds{job="demo",stage="data"} 0.0' in lines
    assert 'raggrpo_forward_seconds{job="demo"} 0.8' in lines
    assert 'raggrpo_step_share{job="demo",stage="train"} 0.5' in lines
    assert 'raggrpo_step_share{job="demo",stage="forward"} 0.2' in lines
    assert 'raggrpo_step_share{job="demo",stage="backward"} 0.25' in lines
    assert 'raggrpo_retrieval_calls_total{endpoint="kb",job="demo",outcome="Timeout"} 2.0' in lines
    assert 'raggrpo_retrieval_seconds{endpoint="kb",job="demo",quantile="0.95"} 0.2' in lines


def test_all_metrics_are_reported_with_maximum_number_of_endpoints(tmp_path: Path) -> None:
    calls = CallSummary(7, 0.1, 0.2, 0.3, {FailureCause.TIMEOUT: 2, FailureCause.BAD_JSON: 1})
    names = [f"{number}-{'x' * 42}" for number in range(8)]
    published = Published()
    reporter = Reporter(make_config(tmp_path, {"monitoring.mode": "Full"}), 1, publish=published)
    reporter.add_probe(
        flops_probe(
            MonitoringSpec(flops_every_steps=1), parameters=10, trained_parameters=10, peaks=[60.0]
        )
    )

    device = {name: 1 for name in DEVICE_METRICS}
    record = make_step(1, **device, retrieval=dict.fromkeys(names, calls))
    reporter.report_step(record)
    reporter.close()

    shown = {metric.name: metric.value for metric in published.progresses[-1].metrics}
    measured = {"host_memory_bytes", "rank_memory_bytes", *DEVICE_METRICS, "mfu"}
    assert record.scalars().keys() | measured <= shown.keys()
    assert {shown[f"retrieval/{name}/p95"] for name in names} == {"0.2"}
    assert {shown[f"retrieval/{name}/failures"] for name in names} == {"3"}
    assert steps_of(tmp_path / "logs", f"retrieval/{names[0]}/p95") == [1]


def test_endpoint_without_responses_has_failures_but_no_latency() -> None:
    calls = CallSummary(0, math.nan, math.nan, math.nan, {FailureCause.TIMEOUT: 2})
    assert retrieval_scalars({"kb": calls}) == {
        "retrieval/kb/failures": 2,
        "retrieval/kb/retries": 0,
    }


@pytest.mark.row("A29")
@pytest.mark.parametrize(("trained", "tflops"), [(2_000_000_000, 6.0), (50_000_000, 4.05)])
def test_flops_are_computed_from_positions_and_training_time(trained: int, tflops: float) -> None:
    record = make_step(1, num_positions=1000, seconds={"train": 2.0})
    probe = flops_probe(MonitoringSpec(), 2_000_000_000, trained, peaks=[60.0, 40.0])
    assert probe.read(record) == pytest.approx({"train_tflops": tflops, "mfu": tflops / 100})


def test_mfu_is_omitted_when_peak_flops_are_unknown() -> None:
    record = make_step(1, num_positions=1000, seconds={"train": 2.0})
    probe = flops_probe(MonitoringSpec(), 2_000_000_000, 2_000_000_000, peaks=[60.0, 0.0])
    assert probe.read(record) == pytest.approx({"train_tflops": 6.0})


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0.0),
        ("NVIDIA GeForce GTX 1080", 0.0),
        ("", 0.0),
    ],
)
def test_peak_flops_are_looked_up_by_device_name(name: str, peak: float) -> None:
    assert peak_tflops(name) == peak


def test_pod_memory_excludes_inactive_page_cache(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 300\nactive_file 100\n")
    assert host_memory_bytes(tmp_path) == 700


def test_host_memory_is_process_memory_outside_pod(tmp_path: Path) -> None:
    assert 10 * 2**20 < host_memory_bytes(tmp_path / "none") < 2**40


def test_probes_run_at_their_own_intervals() -> None:
    monitoring = MonitoringSpec(
        performance_every_steps=3, gpu_every_steps=5, log_every_steps=7, flops_every_steps=11
    )
    probes = [
        host_memory_probe(monitoring),
        device_probe(monitoring),
        weight_update_probe(monitoring),
        flops_probe(monitoring, parameters=10, trained_parameters=10, peaks=[]),
    ]
    assert [probe.every_steps for probe in probes] == [3, 5, 7, 11]


def test_tensorboard_flushes_at_configured_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals = []

    class Writer(EventFileWriter):
        def __init__(self, folder: str, *, flush_secs: int) -> None:
            intervals.append(flush_secs)
            super().__init__(folder, flush_secs=flush_secs)

    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.EventFileWriter", Writer)
    changes = {"monitoring.tensorboardFlushSeconds": 7, "monitoring.mode": "Full"}
    reporter = Reporter(make_config(tmp_path, changes), 1, publish=Published())
    reporter.report_step(make_step(1))
    reporter.close()

    assert intervals == [7]
