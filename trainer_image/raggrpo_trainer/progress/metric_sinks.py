"""Sinks for metrics: history lines, TensorBoard event files, Prometheus text.

Used only by the reporting thread. Files that grow with the run are thinned out to bound their size.
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

from .metrics import LABELED_METRICS, METRICS
from .step_record import StepRecord

HISTORY_BYTES = 32 * 2**20
"""History size in bytes after which only every 10th step is written; at twice that, every 100th."""
MAX_BOARD_STEPS = 20_000
"""Number of steps (2 KiB each) after which TensorBoard and W&B get only every 10th step."""
RARE_EVENTS = frozenset(
    {"start", "resume", "in_place", "validation", "learning", "failed_step", "end"}
)
"""Events that are always written; other events occur with each checkpoint and are thinned out."""


class JsonLines:
    """One history file, read by raggrpo_api.trainer.history; written lines survive a kill."""

    def __init__(self, path: Path, identity: Mapping[str, int], limit: int = HISTORY_BYTES) -> None:
        self._path = path
        self._identity = identity
        self._limit = limit
        self._written = 0

    def write_step(self, time: str, record: StepRecord, probed: Mapping[str, float]) -> None:
        """Write a step with the metrics of the probes that were due."""
        if is_logged(record.step, self._written, self._limit):
            calls = {name: asdict(summary) for name, summary in record.retrieval.items()}
            parts = dict(record.samples.reward_parts)
            self._write(
                {"time": time, "step": record.step}
                | record.scalars()
                | {"step_seconds": record.step_seconds, "seconds": record.stage_seconds()}
                | {"shares": record.shares()}
                | {"reward_parts": parts, "retrieval": calls, **probed}
            )

    def write_event(self, time: str, event: Mapping[str, Any]) -> None:
        """Write an event, `{"event": name, "step": step, ...}`."""
        if event["event"] in RARE_EVENTS or is_logged(event["step"], self._written, self._limit):
            self._write({"time": time, **event})

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(_finite({**record, **self._identity})).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Reopened each time (30 µs): file handles can become stale on network file systems.
        with self._path.open("ab") as file:
            file.write(line)
        self._written += len(line)


class TensorBoard:
    """Event files of one attempt; they hide later steps of earlier attempts."""

    def __init__(self, folder: Path, flush_seconds: int) -> None:
        self.target = str(folder)
        """Name of the sink in messages."""
        self._flush_seconds = flush_seconds
        self._writer: Any = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        # Imported late to keep startup fast. The writer of torch would import torch.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        now = time.time()
        if self._writer is None:
            self._writer = EventFileWriter(self.target, flush_secs=self._flush_seconds)
            session = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=now, step=step, session_log=session))
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=points)))

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()


def is_logged(step: int, written: int, limit: int) -> bool:
    """Return whether a step is written to a log whose current size is `written`.

    The interval between written steps grows tenfold each time the log grows by `limit`, so ten
    million steps take less than five times `limit`.
    """
    stride: int = 10 ** (written // limit)
    return step % stride == 0


class PrometheusText(Collector):
    """The latest metrics in the text format of Prometheus."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._families: list[Metric] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> list[Metric]:
        """Return the metric families to render."""
        return self._families

    def render(
        self,
        progress: Progress,
        record: StepRecord | None,
        probed: Mapping[str, float],
        lost_records: int,
    ) -> bytes:
        """Return the current metrics in the text format of Prometheus."""
        self._families = [*self._gauges(progress, record, probed)]
        if record is not None:
            self._families += [*self._stages(record), *self._retrieval(record)]
        self._families.append(self._lost_records(lost_records))
        return generate_latest(self._registry)

    def _gauges(
        self, progress: Progress, record: StepRecord | None, probed: Mapping[str, float]
    ) -> Iterator[Metric]:
        values: dict[str, float] = {
            "step": progress.step,
            "total_steps": progress.total_steps,
            "attempt": progress.attempt,
            "stage_seconds": progress.stage_seconds,
            "waited_seconds": progress.waited_seconds,
            "save_seconds": progress.save_seconds,
            "checkpoint_step": progress.checkpoint.step if progress.checkpoint else 0,
        }
        values |= {**record.scalars(), **probed} if record is not None else {}
        for name, value in values.items():
            family = GaugeMetricFamily(f"raggrpo_{name}", METRICS.get(name, name), labels=["job"])
            family.add_metric([self._job], value)
            yield family

    def _stages(self, record: StepRecord) -> Iterator[Metric]:
        by_metric = {"step_seconds": record.stage_seconds(), "step_share": record.shares()}
        for name, by_stage in by_metric.items():
            family = _labeled_family(name)
            for stage, value in by_stage.items():
                family.add_metric([self._job, stage], value)
            yield family

    def _retrieval(self, record: StepRecord) -> Iterator[Metric]:
        calls = _labeled_family("retrieval_calls")
        retries = _labeled_family("retrieval_retries")
        latency = _labeled_family("retrieval_seconds")
        for endpoint, summary in record.retrieval.items():
            calls.add_metric([self._job, endpoint, "Answered"], summary.answered)
            for cause, count in summary.failures.items():
                calls.add_metric([self._job, endpoint, str(cause)], count)
            retries.add_metric([self._job, endpoint], summary.retries)
            for quantile, seconds in ((50, summary.p50), (95, summary.p95), (99, summary.p99)):
                latency.add_metric([self._job, endpoint, f"0.{quantile}"], seconds)
        yield from (calls, retries, latency)

    def _lost_records(self, count: int) -> Metric:
        family = _labeled_family("lost_log_records")
        family.add_metric([self._job], count)
        return family


def _labeled_family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    """Return a metric of LABELED_METRICS without values."""
    metric = LABELED_METRICS[name]
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(f"raggrpo_{name}", metric.text, labels=["job", *metric.labels])


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot represent, by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
