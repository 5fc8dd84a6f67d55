"""The reporting thread: writes and publishes an attempt's reports. Must not know the loop.

Failed writes are counted and shown, but never end training.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from raggrpo_api.spec.monitoring import MonitoringMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.history import history_file
from raggrpo_api.trainer.progress import Metric, Progress

from .metric_sinks import BOARD_POINTS, JsonLines, PrometheusText, TensorBoard, is_kept
from .step_probes import (
    Probe,
    device_memory_probe,
    host_memory_probe,
    weight_update_probe,
)
from .step_record import StepRecord
from .wandb_run import WandbRun

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
"""Progress is published at least this often, so that time in a stage visibly grows."""
CLOSE_SECONDS = 30.0
"""How long `finish` waits for an unresponsive log folder."""
QUEUED_RECORDS = 1024
MAX_METRICS = 64

Record = StepRecord | dict[str, Any]
"""A step, or an event in the form written to the history."""
Publish = Callable[[bytes, bytes], None]
"""Receives Progress as JSON and the Prometheus text; called from the reporting thread."""


class ReportingThread(threading.Thread):
    """Takes records from a queue, writes what is due and publishes progress."""

    def __init__(
        self, config: TrainerConfig, epoch: int, publish: Publish, progress: Callable[[], Progress]
    ) -> None:
        super().__init__(name="reporting", daemon=True)
        self._config, self._publish, self._progress = config, publish, progress
        self._probes = [
            host_memory_probe(config.monitoring.performance_every_steps),
            device_memory_probe(config.monitoring.gpu_every_steps),
            weight_update_probe(config.monitoring.log_every_steps),
        ]
        self._queue: queue.Queue[tuple[str, Record] | None] = queue.Queue(QUEUED_RECORDS)
        self._log_dir = Path(config.monitoring.log_dir)
        identity = {"epoch": epoch, "attempt": config.attempt.number}
        self._lines = JsonLines(history_file(self._log_dir, epoch), identity)
        self._boards: list[TensorBoard | WandbRun] = []
        self._plotted = 0
        self._prometheus = PrometheusText(config.attempt.job_name)
        self._newest: StepRecord | None = None
        self._measured: dict[str, float] = {}
        self._dropped = 0
        self._unwritten: Counter[str] = Counter()
        self._bug: BaseException | None = None

    def add_probe(self, probe: Probe) -> None:
        """Add a probe, effective from the next step."""
        self._probes.append(probe)

    def enqueue(self, record: Record) -> None:
        """Queue a record; if the queue is full because the disk hangs, count it as lost."""
        self._raise_bug()
        try:
            self._queue.put_nowait((utc_now(), record))
        except queue.Full:
            self._dropped += 1

    def finish(self) -> None:
        """Write and publish what is queued, then end, giving up on a log folder that hangs."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            log.error("%s does not answer: newest records are lost", self._log_dir)
        else:
            self.join(CLOSE_SECONDS)
        if self.is_alive():
            self._show()  # a slow disk must not delay the reason why the attempt ended
        self._raise_bug()

    def run(self) -> None:
        """Serve, keeping any exception for the caller to raise."""
        try:
            self._serve()
        except BaseException as error:
            self._bug = error

    def _serve(self) -> None:
        monitoring = self._config.monitoring
        self._show()
        if monitoring.mode is not MonitoringMode.OFF:
            folder = self._log_dir / "tensorboard"
            self._boards.append(TensorBoard(folder, monitoring.tensorboard_flush_seconds))
            if monitoring.wandb.project:
                place = f"W&B project {monitoring.wandb.project}"
                self._guarded(lambda: self._boards.append(WandbRun(self._config)), place)
        while (item := self._next()) is not None:
            self._write(*item)
        self._show()  # before closing W&B, which may take seconds
        for board in self._boards:
            self._guarded(board.close, board.place)
        self._show()

    def _next(self) -> tuple[str, Record] | None:
        """Return the next record, publishing while waiting for it."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            self._show()
        while True:
            try:
                return self._queue.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                self._show()

    def _write(self, time: str, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._newest = record
            self._write_step(time, record)
        else:
            self._guarded(lambda: self._lines.event(time, record), str(self._log_dir))
            if record["event"] == "validation" and self._boards:
                self._plot_validation(record)

    def _write_step(self, time: str, record: StepRecord) -> None:
        monitoring, step = self._config.monitoring, record.step
        if monitoring.mode is MonitoringMode.OFF:
            return
        measured: dict[str, float] = {}
        for probe in self._probes:
            if self._is_due(step, probe.every_steps):
                measured |= probe.read(record)
        self._measured |= measured
        self._guarded(lambda: self._lines.step(time, record, measured), str(self._log_dir))
        points = dict(measured)
        if self._is_due(step, monitoring.log_every_steps):
            points |= record.scalars()
            parts = record.samples.reward_parts
            points |= {f"reward/{name}": value for name, value in parts.items()}
            log.info("%s", _line(record, self._config.training.total_steps))
        if self._is_due(step, monitoring.performance_every_steps):
            points |= {f"seconds/{name}": value for name, value in record.stage_seconds().items()}
            points |= record.retrieval_scalars()
        if points:
            self._plot(step, points)

    def _plot_validation(self, event: Mapping[str, Any]) -> None:
        names = ("exact_match", "reward_mean", "control_exact_match")
        points = {f"validation/{n}": event[n] for n in names if event[n] is not None}
        self._plot(event["step"], points)

    def _plot(self, step: int, points: Mapping[str, float]) -> None:
        if not is_kept(step, self._plotted, BOARD_POINTS):
            return
        self._plotted += 1
        for board in self._boards:
            self._guarded(partial(board.write, step, points), board.place)

    def _is_due(self, step: int, every_steps: int) -> bool:
        return self._config.monitoring.mode is MonitoringMode.FULL or step % every_steps == 0

    def _guarded(self, write: Callable[[], None], place: str) -> None:
        """Count a failed write: a full log folder must not end training."""
        try:
            write()
        except OSError as error:
            if not self._unwritten[place]:
                log.error("cannot write to %s: %s; training goes on", place, error)
            self._unwritten[place] += 1

    def _show(self) -> None:
        progress, record = self._progress(), self._newest
        lost = self._dropped + self._unwritten.total()
        numbers = {**record.scalars(), **self._measured} if record else {}
        numbers |= {"lost_log_records": lost} if lost else {}
        numbers |= record.retrieval_scalars() if record else {}
        metrics = [Metric(name=name, value=f"{value:.6g}") for name, value in numbers.items()]
        progress = progress.model_copy(update={"metrics": metrics[:MAX_METRICS]})
        text = self._prometheus.render(progress, record, self._measured, lost)
        self._publish(progress.model_dump_json(by_alias=True).encode(), text)

    def _raise_bug(self) -> None:
        if self._bug is not None:
            raise RuntimeError("the reporting thread has failed") from self._bug


def _line(record: StepRecord, total_steps: int) -> str:
    """Return a step's log line."""
    samples = record.samples
    reward = "none" if samples.reward_mean is None else f"{samples.reward_mean:.4f}"
    stages = ", ".join(f"{name} {s:.2f}" for name, s in record.stage_seconds().items())
    return (
        f"step {record.step}/{total_steps} reward {reward} loss {record.trained.loss:.4g} "
        f"grad {record.trained.grad_norm:.3g} failed {samples.num_failed}/{samples.num_samples} "
        f"{record.step_seconds:.2f} s ({stages})"
    )


def utc_now() -> str:
    """Return the current time in the history's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
