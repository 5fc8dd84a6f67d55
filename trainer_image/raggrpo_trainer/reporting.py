"""What an attempt tells the outside: progress, history, TensorBoard, metrics; off the step's path.

    loop ─▶ Reporter (a few µs) ─▶ queue ─▶ one thread ─▶ metrics.e<epoch>.jsonl, event files
                                                      └─▶ publish(progress, Prometheus text)

Trouble with log files is counted and shown but never ends training. Must not know Ray.
"""

import logging
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raggrpo_api.history import history_file
from raggrpo_api.monitoring import MonitoringMode
from raggrpo_api.progress import CheckpointRef, Failure, Metric, Progress, SkippedCheckpoint, Stage
from raggrpo_api.trainer_config import TrainerConfig

from .metric_sinks import JsonLines, PrometheusText, TensorBoard
from .step_probes import Probe, host_memory_probe
from .step_record import StepRecord as StepRecord

if TYPE_CHECKING:
    from .validation import ValidationResult

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
"""Progress is published at least this often, so that the time in a stage is seen to grow."""
CLOSE_SECONDS = 10.0
"""How long the end waits for a log folder that does not answer."""
QUEUED_RECORDS = 1024
RECENT_STEPS = 20
MAX_SKIPPED = 32
MAX_IN_PLACE = 16
MAX_METRICS = 64
MAX_MESSAGE = 1000

Publish = Callable[[bytes, bytes], None]
"""Takes Progress as JSON and the Prometheus text; called from the reporting thread."""


class Reporter:
    """The loop's side: every call returns at once. Bugs of the thread are raised here."""

    def __init__(
        self,
        config: TrainerConfig,
        epoch: int,
        *,
        publish: Publish,
        probes: Sequence[Probe] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._stage_since = clock()
        self._replacements = 0
        self._recent: deque[StepRecord] = deque(maxlen=RECENT_STEPS)
        self._progress = Progress(
            attempt=config.attempt.number,
            epoch=epoch,
            stage=Stage.CONNECTING,
            total_steps=config.training.total_steps,
        )
        self._thread = _Thread(config, epoch, publish, probes, self._current)
        self._event("start", config_hash=config.attempt.config_hash)
        self._thread.start()

    def stage(self, stage: Stage) -> None:
        """Say what the attempt does now; saying it again changes nothing."""
        left, now = self._progress.stage, self._clock()
        if stage is left:
            return
        seconds, self._stage_since = now - self._stage_since, now
        self._update(stage=stage)
        self._event("stage", stage=stage, left=left, seconds=seconds)

    def resumed(
        self,
        step: int,
        checkpoint: CheckpointRef | None = None,
        best_step: int | None = None,
        skipped: Sequence[SkippedCheckpoint] = (),
    ) -> None:
        """Say after which step the attempt goes on (0: a fresh start) and what it passed over."""
        self._update(
            step=step,
            started_from_step=step,
            checkpoint=checkpoint,
            best_step=best_step,
            skipped_checkpoints=list(skipped[:MAX_SKIPPED]),
        )
        path = checkpoint.path if checkpoint else ""
        reasons = {s.path: s.reason for s in skipped}
        self._event("resume", checkpoint=path, skipped=reasons)

    def pinned(self, values: Mapping[str, str]) -> None:
        """Say what Auto chose; it is kept for all attempts."""
        self._update(pinned=dict(values))

    def replaced(self, happened: Sequence[str]) -> None:
        """Report what was replaced without ending the attempt; `happened` is all of it so far."""
        for message in happened[self._replacements :]:
            self._event("in_place", message=message)
        if len(happened) > self._replacements:
            self._replacements = len(happened)
            self._update(in_place=list(happened[-MAX_IN_PLACE:]))

    def step(self, record: StepRecord) -> None:
        """Report a finished step."""
        self._recent.append(record)
        self._update(
            step=record.step,
            seconds_per_step=statistics.median(each.step_seconds for each in self._recent),
        )
        self._thread.put(record)

    def saved(self, checkpoint: CheckpointRef, seconds: float, best_step: int | None) -> None:
        """Report a complete checkpoint and how long saving it took."""
        self._update(checkpoint=checkpoint, save_seconds=seconds, best_step=best_step)
        self._event("checkpoint", path=checkpoint.path, seconds=seconds, best_step=best_step)

    def validated(self, when: str, step: int, result: "ValidationResult") -> None:
        """Report a validation `before`, `during` or `after` the training."""
        self._event("validation", when=when, **{**asdict(result), "step": step})

    def close(self, failure: Failure | None = None) -> None:
        """Publish and write the end, and wait for it."""
        self._update(failure=failure)
        code, message = (failure.exit_code, failure.message) if failure else (0, "")
        self._event("end", exit_code=code, message=message[:MAX_MESSAGE])
        self._thread.finish()

    def _update(self, **changes: object) -> None:
        # One assignment: the thread sees the old progress or the new one, never half of it.
        self._progress = self._progress.model_copy(update=changes)

    def _event(self, event: str, **values: Any) -> None:
        self._thread.put({"event": event, "step": self._progress.step, **values})

    def _current(self) -> Progress:
        """Return the progress as of now (called by the thread)."""
        recent = [each.stage_seconds() for each in tuple(self._recent)]
        medians = {
            name: statistics.median(each.get(name, 0.0) for each in recent)
            for name in (recent[-1] if recent else {})
        }
        now: dict[str, object] = {
            "stage_seconds": self._clock() - self._stage_since,
            "seconds_by_stage": medians,
            "time": _now(),
        }
        return self._progress.model_copy(update=now)


class _Thread(threading.Thread):
    """Takes records from the queue, writes what is due, publishes."""

    def __init__(
        self,
        config: TrainerConfig,
        epoch: int,
        publish: Publish,
        probes: Sequence[Probe],
        progress: Callable[[], Progress],
    ) -> None:
        super().__init__(name="reporting", daemon=True)
        self._config, self._publish, self._progress = config, publish, progress
        self._probes = [*probes, host_memory_probe(config.monitoring.performance_every_steps)]
        self._queue: queue.Queue[tuple[str, _Record] | None] = queue.Queue(QUEUED_RECORDS)
        self._log_dir = Path(config.monitoring.log_dir)
        identity = {"epoch": epoch, "attempt": config.attempt.number}
        self._lines = JsonLines(history_file(self._log_dir, epoch), identity)
        self._board: TensorBoard | None = None
        self._prometheus = PrometheusText(config.attempt.job_name)
        self._newest: StepRecord | None = None
        self._measured: dict[str, float] = {}
        self._dropped = 0
        self._unwritten = 0
        self._bug: BaseException | None = None

    def put(self, record: "_Record") -> None:
        """Queue a record; one that finds no room, since the disk hangs, is counted as lost."""
        self._raise_bug()
        try:
            self._queue.put_nowait((_now(), record))
        except queue.Full:
            self._dropped += 1

    def finish(self) -> None:
        """Write and publish what is queued, then end; a log folder that hangs is left behind."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            log.error("%s does not answer: newest records are lost", self._log_dir)
        else:
            self.join(CLOSE_SECONDS)
        self._raise_bug()

    def run(self) -> None:
        """Keep a bug for the caller instead of dying in silence."""
        try:
            self._serve()
        except BaseException as error:
            self._bug = error

    def _serve(self) -> None:
        monitoring = self._config.monitoring
        self._show()  # before the slow import of TensorBoard
        if monitoring.mode is not MonitoringMode.OFF:
            folder = self._log_dir / "tensorboard"
            self._board = TensorBoard(folder, monitoring.tensorboard_flush_seconds)
        while (item := self._next()) is not None:
            self._write(*item)
        if self._board is not None:
            self._guarded(self._board.close)
        self._show()

    def _next(self) -> "tuple[str, _Record] | None":
        """Return the next record; whenever there is none, publish."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            self._show()
        while True:
            try:
                return self._queue.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                self._show()

    def _write(self, time: str, record: "_Record") -> None:
        if isinstance(record, StepRecord):
            self._newest = record
            self._write_step(time, record)
        else:
            self._guarded(lambda: self._lines.event(time, record))
            if record["event"] == "validation" and self._board is not None:
                self._write_validation(self._board, record)

    def _write_step(self, time: str, record: StepRecord) -> None:
        monitoring, step = self._config.monitoring, record.step
        if self._board is None:
            return
        measured: dict[str, float] = {}
        for probe in self._probes:
            if self._is_due(step, probe.every_steps):
                measured |= probe.read(record)
        self._measured |= measured
        self._guarded(lambda: self._lines.step(time, record, measured))
        points = dict(measured)
        if self._is_due(step, monitoring.log_every_steps):
            points |= record.scalars()
            points |= {f"reward/{name}": value for name, value in record.reward_parts.items()}
            log.info("%s", _line(record, self._config.training.total_steps))
        if self._is_due(step, monitoring.performance_every_steps):
            points |= {f"seconds/{name}": value for name, value in record.stage_seconds().items()}
        board = self._board
        if points:
            self._guarded(lambda: board.write(step, points))

    def _write_validation(self, board: TensorBoard, event: Mapping[str, Any]) -> None:
        names = ("exact_match", "reward_mean", "control_exact_match")
        points = {f"validation/{n}": event[n] for n in names if event[n] is not None}
        self._guarded(lambda: board.write(event["step"], points))

    def _is_due(self, step: int, every_steps: int) -> bool:
        return self._config.monitoring.mode is MonitoringMode.FULL or step % every_steps == 0

    def _guarded(self, write: Callable[[], None]) -> None:
        """Count what the disk refuses: a full log folder must not end a training run."""
        try:
            write()
        except OSError as error:
            if not self._unwritten:
                log.error("cannot write to %s: %s; training goes on", self._log_dir, error)
            self._unwritten += 1

    def _show(self) -> None:
        progress, record = self._progress(), self._newest
        lost = self._dropped + self._unwritten
        numbers = {**record.scalars(), **self._measured} if record else {}
        numbers |= {"lost_log_records": lost} if lost else {}
        metrics = [Metric(name=name, value=f"{value:.6g}") for name, value in numbers.items()]
        progress = progress.model_copy(update={"metrics": metrics[:MAX_METRICS]})
        text = self._prometheus.render(progress, record, self._measured, lost)
        self._publish(progress.model_dump_json(by_alias=True).encode(), text)

    def _raise_bug(self) -> None:
        if self._bug is not None:
            raise RuntimeError("the reporting thread has failed") from self._bug


_Record = StepRecord | dict[str, Any]


def _line(record: StepRecord, total_steps: int) -> str:
    """Return the log line of a step (A9)."""
    reward = "none" if record.reward_mean is None else f"{record.reward_mean:.4f}"
    stages = ", ".join(f"{name} {s:.2f}" for name, s in record.stage_seconds().items())
    return (
        f"step {record.step}/{total_steps} reward {reward} loss {record.loss:.4g} "
        f"grad {record.grad_norm:.3g} failed {record.num_failed}/{record.num_samples} "
        f"{record.step_seconds:.2f} s ({stages})"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
