"""`JobSeries`: what Prometheus is told of every job, made when it asks. Knows only statuses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_operator.core.state.conditions import is_true
from raggrpo_operator.kube.cluster_objects import JobKey

PREFIX = "raggrpo_job"
JOB = ("namespace", "name")
GAUGES = {
    "progress_ratio": "Share of the steps that are done.",
    "last_step_timestamp_seconds": "When the step counter last moved.",
    "restarts": "Restarts so far.",
    "restarts_since_progress": "Failures since the last new checkpoint.",
    "restart_budget": "Failures without a new checkpoint that are allowed.",
    "lost_steps": "Steps that had to be repeated.",
    "effective_training_time_ratio": "Share of the time that went into kept steps.",
    "waiting_time_ratio": "Share of the time spent waiting for services that were down.",
    "waiting_for_endpoint": "1: the job waits for a service that is down.",
    "stalls": "Attempts that ended as stalled.",
    "gpus": "GPUs of the job.",
}


@dataclass(frozen=True, slots=True)
class _Shown:
    preset: str
    device: str
    phase: Phase
    causes: Mapping[str, int]
    values: Mapping[str, float]


class JobSeries(Collector):
    """The jobs' series; they disappear with their jobs.

    A job has two dozen of them: as objects of their own they would take 17 kB of memory a job, and
    every round would have to set them all.
    """

    def __init__(self) -> None:
        self._shown: dict[JobKey, _Shown] = {}

    def update(self, key: JobKey, job: RagGrpoJob) -> None:
        """Keep what is told of a job."""
        status = job.status
        values = {
            "progress_ratio": status.progress.progress_percentage / 100,
            "restarts": status.restarts.total,
            "restarts_since_progress": status.restarts.since_progress,
            "restart_budget": job.spec.recovery.max_restarts,
            "lost_steps": status.restarts.lost_steps,
            "waiting_time_ratio": float(status.waiting_time_ratio or 0),
            "waiting_for_endpoint": is_true(status, ConditionType.WAITING_FOR_ENDPOINT),
            "stalls": status.restarts.by_cause.get("Stalled", 0),
            "gpus": status.sizing.gpus,
        }
        if moved := status.restart_state.watch.still_since:
            values["last_step_timestamp_seconds"] = moved.timestamp()
        if ratio := status.effective_training_time_ratio:
            values["effective_training_time_ratio"] = float(ratio)
        preset, device = str(job.spec.preset), str(job.spec.resources.device)
        causes = status.restarts.by_cause
        self._shown[key] = _Shown(preset, device, status.phase, causes, values)

    def remove(self, key: JobKey) -> None:
        """Drop the series of a deleted job."""
        self._shown.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield all series."""
        info = _family("info", "A job.", "preset", "device")
        phase = _family("phase", "1 for the job's phase.", "phase")
        ends = _family("restarts_by_cause", "Failed attempts by what ended them.", "cause")
        gauges = {name: _family(name, text) for name, text in GAUGES.items()}
        for key, shown in self._shown.items():
            info.add_metric((*key, shown.preset, shown.device), 1)
            for each in Phase:
                phase.add_metric((*key, str(each)), each is shown.phase)
            for cause, count in shown.causes.items():
                ends.add_metric((*key, cause), count)
            for name, value in shown.values.items():
                gauges[name].add_metric(key, value)
        yield from (info, phase, ends, *gauges.values())


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=(*JOB, *labels))
