"""Where reported numbers go: history lines, TensorBoard event files, Prometheus text.

Used only by the reporting thread. Output that grows with the run is thinned out to stay bounded.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from raggrpo_api.trainer.progress import Progress

from .metrics import METRICS
from .step_record import StepRecord

HISTORY_BYTES = 32 * 2**20
"""After this many bytes a history file gets every 10th step, after twice as many every 100th, …"""
BOARD_POINTS = 20_000
"""The same limit for TensorBoard and W&B, in steps written (about 2 KiB each)."""
RARE_EVENTS = frozenset({"start", "resume", "in_place", "validation", "end"})
"""Always written; the others come with every checkpoint and are thinned out."""


class JsonLines:
    """One history file, for raggrpo_api.trainer.history; a killed process loses no written line."""

    def __init__(self, path: Path, identity: Mapping[str, int], limit: int = HISTORY_BYTES) -> None:
        self._path, self._identity, self._limit = path, identity, limit
        self._written = 0

    def step(self, time: str, record: StepRecord, measured: Mapping[str, float]) -> None:
        """Write a step."""
        if is_kept(record.step, self._written, self._limit):
            calls = {name: asdict(summary) for name, summary in record.retrieval.items()}
            parts = dict(record.samples.reward_parts)
            self._write(
                {"time": time, "step": record.step}
                | record.scalars()
                | {"step_seconds": record.step_seconds, "seconds": record.stage_seconds()}
                | {"reward_parts": parts, "retrieval": calls, **measured}
            )

    def event(self, time: str, event: Mapping[str, Any]) -> None:
        """Write an event, `{"event": name, "step": step, ...}`."""
        if event["event"] in RARE_EVENTS or is_kept(event["step"], self._written, self._limit):
            self._write({"time": time, **event})

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(_finite({**record, **self._identity})).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Reopened each time (30 µs): descriptors can go stale on network file systems.
        with self._path.open("ab") as file:
            file.write(line)
        self._written += len(line)


class TensorBoard:
    """One attempt's event files; they hide what earlier attempts wrote past its first step."""

    def __init__(self, folder: Path, flush_seconds: int) -> None:
        self.place, self._flush_seconds = str(folder), flush_seconds
        self._board: Any = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add the scalars' points at a step."""
        # Imported late, so that it does not delay startup. Torch's own writer would import torch.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        now = time.time()
        if self._board is None:
            self._board = EventFileWriter(self.place, flush_secs=self._flush_seconds)
            began = SessionLog(status=SessionLog.START)
            self._board.add_event(Event(wall_time=now, step=step, session_log=began))
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._board.add_event(Event(wall_time=now, step=step, summary=Summary(value=points)))

    def close(self) -> None:
        """Flush and close the event file."""
        if self._board is not None:
            self._board.close()


def is_kept(step: int, written: int, limit: int) -> bool:
    """Return whether a log that holds `written` so far gets this step.

    Each further `limit` takes ten times as many steps to fill: ten million steps stay below five.
    """
    stride: int = 10 ** (written // limit)
    return step % stride == 0


class PrometheusText(Collector):
    """The latest numbers in Prometheus' text format."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._families: list[Metric] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> list[Metric]:
        """Return the families to render."""
        return self._families

    def render(
        self,
        progress: Progress,
        record: StepRecord | None,
        measured: Mapping[str, float],
        lost_records: int,
    ) -> bytes:
        """Return the text."""
        self._families = [*self._gauges(progress, record, measured)]
        if record is not None:
            self._families += [self._stages(record), *self._retrieval(record)]
        self._families.append(self._lost(lost_records))
        return generate_latest(self._registry)

    def _gauges(
        self, progress: Progress, record: StepRecord | None, measured: Mapping[str, float]
    ) -> Iterator[Metric]:
        numbers: dict[str, float] = {
            "step": progress.step,
            "total_steps": progress.total_steps,
            "attempt": progress.attempt,
            "stage_seconds": progress.stage_seconds,
            "waited_seconds": progress.waited_seconds,
            "save_seconds": progress.save_seconds,
            "checkpoint_step": progress.checkpoint.step if progress.checkpoint else 0,
        }
        numbers |= {**record.scalars(), **measured} if record is not None else {}
        for name, value in numbers.items():
            family = GaugeMetricFamily(f"raggrpo_{name}", METRICS.get(name, name), labels=["job"])
            family.add_metric([self._job], value)
            yield family

    def _stages(self, record: StepRecord) -> Metric:
        family = GaugeMetricFamily(
            "raggrpo_step_seconds", "seconds of the newest step by stage", labels=["job", "stage"]
        )
        for stage, seconds in record.stage_seconds().items():
            family.add_metric([self._job, stage], seconds)
        return family

    def _retrieval(self, record: StepRecord) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "raggrpo_retrieval_calls",
            "calls of retrieval endpoints, answered or by cause of failure",
            labels=["job", "endpoint", "outcome"],
        )
        latency = GaugeMetricFamily(
            "raggrpo_retrieval_seconds",
            "latency of answered calls",
            labels=["job", "endpoint", "quantile"],
        )
        for endpoint, summary in record.retrieval.items():
            calls.add_metric([self._job, endpoint, "Answered"], summary.answered)
            for cause, count in summary.failures.items():
                calls.add_metric([self._job, endpoint, str(cause)], count)
            for quantile, seconds in ((50, summary.p50), (95, summary.p95), (99, summary.p99)):
                latency.add_metric([self._job, endpoint, f"0.{quantile}"], seconds)
        yield from (calls, latency)

    def _lost(self, count: int) -> Metric:
        family = CounterMetricFamily(
            "raggrpo_lost_log_records",
            "records that could not be written to the log folder",
            labels=["job"],
        )
        family.add_metric([self._job], count)
        return family


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot hold, with null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
