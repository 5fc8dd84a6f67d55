"""The reporting thread: writes and publishes an attempt's reports. Must not import `loop`.

Failed writes are counted and reported; they never stop training.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from raggrpo_api.spec.monitoring import MonitoringMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.history import history_file
from raggrpo_api.trainer.progress import Metric, Progress
from raggrpo_trainer.http.call_statistics import CallSummary

from .metric_sinks import MAX_BOARD_STEPS, JsonLines, PrometheusText, TensorBoard, is_logged
from .step_probes import (
    Probe,
    device_probe,
    host_memory_probe,
    weight_update_probe,
)
from .step_record import FailedStep, StepRecord, retrieval_scalars
from .wandb_run import WandbRun

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
"""Maximum interval between progress updates, which include the time spent in the stage."""
CLOSE_SECONDS = 30.0
"""How long `finish` waits for a log folder that does not respond."""
MAX_QUEUED_RECORDS = 1024
MAX_METRICS = 64

Record = StepRecord | FailedStep | dict[str, Any]
"""A step, or an event as written to the history."""
Publish = Callable[[bytes, bytes], None]
"""Function that receives Progress as JSON and the Prometheus text in the reporting thread."""


class ReportingThread(threading.Thread):
    """Writes the records of a queue to the sinks and publishes progress."""

    def __init__(
        self, config: TrainerConfig, epoch: int, publish: Publish, progress: Callable[[], Progress]
    ) -> None:
        super().__init__(name="reporting", daemon=True)
        self._config = config
        self._publish, self._progress = publish, progress
        self._probes = [
            host_memory_probe(config.monitoring),
            device_probe(config.monitoring),
            weight_update_probe(config.monitoring),
        ]
        self._queue: queue.Queue[tuple[str, Record] | None] = queue.Queue(MAX_QUEUED_RECORDS)
        self._log_dir = Path(config.monitoring.log_dir)
        identity = {"epoch": epoch, "attempt": config.attempt.number}
        self._history = JsonLines(history_file(self._log_dir, epoch), identity)
        self._boards: list[TensorBoard | WandbRun] = []
        self._board_steps = 0
        self._prometheus = PrometheusText(config.attempt.job_name)
        self._newest: StepRecord | None = None
        self._calls: Mapping[str, CallSummary] = {}
        self._probed: dict[str, float] = {}
        self._dropped = 0
        self._failed_writes: Counter[str] = Counter()
        self._crash: BaseException | None = None

    def add_probe(self, probe: Probe) -> None:
        """Add a probe, effective from the next step."""
        self._probes.append(probe)

    def enqueue(self, record: Record) -> None:
        """Queue a record; count it as lost if the queue is full because the disk hangs."""
        self._raise_crash()
        try:
            self._queue.put_nowait((utc_now(), record))
        except queue.Full:
            self._dropped += 1

    def finish(self) -> None:
        """Write and publish all queued records, then stop; limit the wait for a hung log folder."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            log.error(
                "the log folder %s does not respond; the newest records are lost", self._log_dir
            )
        else:
            self.join(CLOSE_SECONDS)
        if self.is_alive():
            self._publish_current()  # a slow disk must not delay the report of a failure
        self._raise_crash()

    def run(self) -> None:
        """Process the queue; store an exception for the next call to raise."""
        try:
            self._process_queue()
        except BaseException as error:
            self._crash = error

    def _process_queue(self) -> None:
        monitoring = self._config.monitoring
        self._publish_current()
        if monitoring.mode is not MonitoringMode.OFF:
            folder = self._log_dir / "tensorboard"
            self._boards.append(TensorBoard(folder, monitoring.tensorboard_flush_seconds))
            if monitoring.wandb.project:
                target = f"W&B project {monitoring.wandb.project}"
                self._guarded(lambda: self._boards.append(WandbRun(self._config)), target)
        while (item := self._next()) is not None:
            self._write(*item)
        self._publish_current()  # before closing W&B, which may take seconds
        for board in self._boards:
            self._guarded(board.close, board.target)
        self._publish_current()

    def _next(self) -> tuple[str, Record] | None:
        """Return the next record; publish progress while waiting for it."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            self._publish_current()
        while True:
            try:
                return self._queue.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                self._publish_current()

    def _write(self, time: str, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._newest = record
            self._calls = record.retrieval
            self._write_step(time, record)
        elif isinstance(record, FailedStep):
            self._calls = record.retrieval
            if self._newest is not None:
                self._newest = replace(self._newest, retrieval=record.retrieval)
            self._write_event(time, record.event())
        else:
            self._write_event(time, record)

    def _write_event(self, time: str, event: dict[str, Any]) -> None:
        self._guarded(lambda: self._history.write_event(time, event), str(self._log_dir))
        if event["event"] == "validation" and self._boards:
            self._plot_validation(event)

    def _write_step(self, time: str, record: StepRecord) -> None:
        monitoring = self._config.monitoring
        step = record.step
        probed, points = self._read_probes(record)
        self._probed |= probed
        self._guarded(lambda: self._history.write_step(time, record, probed), str(self._log_dir))
        if monitoring.mode is MonitoringMode.OFF:
            return
        if self._is_due(step, monitoring.log_every_steps):
            points |= record.scalars()
            parts = record.samples.reward_parts
            points |= {f"reward/{name}": value for name, value in parts.items()}
            log.info("%s", _log_line(record, self._config.training.total_steps))
        if self._is_due(step, monitoring.performance_every_steps):
            points |= {f"seconds/{name}": value for name, value in record.stage_seconds().items()}
            points |= {f"share/{name}": value for name, value in record.shares().items()}
            points |= retrieval_scalars(record.retrieval)
        if points:
            self._plot(step, points)

    def _read_probes(self, record: StepRecord) -> tuple[dict[str, float], dict[str, float]]:
        """Return the probed metrics for the history, and those that are due.

        The history has all metrics of an attempt's first step, for runs shorter than an interval.
        """
        is_first = not self._probed
        probed: dict[str, float] = {}
        due: dict[str, float] = {}
        for probe in self._probes:
            is_due = self._is_due(record.step, probe.every_steps)
            values = probe.read(record) if is_due or is_first else {}
            probed |= values
            due |= values if is_due else {}
        return probed, due

    def _plot_validation(self, event: Mapping[str, Any]) -> None:
        names = ("exact_match", "reward_mean", "control_exact_match")
        points = {f"validation/{n}": event[n] for n in names if event[n] is not None}
        self._plot(event["step"], points)

    def _plot(self, step: int, points: Mapping[str, float]) -> None:
        if not is_logged(step, self._board_steps, MAX_BOARD_STEPS):
            return
        self._board_steps += 1
        for board in self._boards:
            self._guarded(partial(board.write, step, points), board.target)

    def _is_due(self, step: int, every_steps: int) -> bool:
        return self._config.monitoring.mode is MonitoringMode.FULL or step % every_steps == 0

    def _guarded(self, write: Callable[[], None], target: str) -> None:
        """Run `write`; count an OSError: a full log folder must not stop training."""
        try:
            write()
        except OSError as error:
            if not self._failed_writes[target]:
                log.error("cannot write to %s: %s; training continues", target, error)
            self._failed_writes[target] += 1

    def _publish_current(self) -> None:
        progress = self._progress()
        record = self._newest
        lost = self._dropped + self._failed_writes.total()
        values = {**record.scalars(), **self._probed} if record else {}
        values |= {"lost_log_records": lost} if lost else {}
        values |= retrieval_scalars(self._calls)
        metrics = [Metric(name=name, value=f"{value:.6g}") for name, value in values.items()]
        progress = progress.model_copy(update={"metrics": metrics[:MAX_METRICS]})
        text = self._prometheus.render(progress, record, self._probed, lost)
        self._publish(progress.model_dump_json(by_alias=True).encode(), text)

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise RuntimeError("the reporting thread has failed") from self._crash


def _log_line(record: StepRecord, total_steps: int) -> str:
    """Return the log line of a step."""
    samples = record.samples
    reward = "none" if samples.reward_mean is None else f"{samples.reward_mean:.4f}"
    stages = ", ".join(f"{name} {s:.2f}" for name, s in record.stage_seconds().items())
    return (
        f"step {record.step}/{total_steps} reward {reward} loss {record.trained.loss:.4g} "
        f"grad {record.trained.grad_norm:.3g} failed {samples.num_failed}/{samples.num_samples} "
        f"{record.step_seconds:.2f} s ({stages})"
    )


def utc_now() -> str:
    """Return the current time in the format of the history."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
