"""`JobSeries`: Prometheus series of all jobs, built from their statuses at each scrape."""

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
    "progress_ratio": "Share of completed steps.",
    "last_step_timestamp_seconds": "Time of the last completed step.",
    "restarts": "Restarts of the job.",
    "restarts_since_progress": "Restarts since the last new checkpoint.",
    "restart_budget": "Restarts allowed since the last new checkpoint (recovery.maxRestarts).",
    "lost_steps": "Steps lost to restarts.",
    "effective_training_time_ratio": "Share of time spent on retained steps.",
    "waiting_time_ratio": "Share of time spent waiting for unavailable services.",
    "waiting_for_endpoint": "1 if the job is waiting for an unavailable service.",
    "reconcile_failing": "1 if the operator cannot reconcile the job; see condition Reconciling.",
    "not_learning": "1 if recent steps show that the job learns nothing.",
    "stalls": "Attempts that ended with cause Stalled.",
    "gpus": "GPUs requested by the job.",
}


@dataclass(frozen=True, slots=True)
class _Job:
    preset: str
    device: str
    phase: Phase
    causes: Mapping[str, int]
    values: Mapping[str, float]


class JobSeries(Collector):
    """Collector of the series of all jobs.

    A job has two dozen series. Separate Gauge objects would take 17 kB per job, and each round
    would have to set all Gauges.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}

    def update(self, key: JobKey, job: RagGrpoJob, *, is_failing: bool = False) -> None:
        """Update the series of a job; `is_failing` is whether its last reconcile failed."""
        status = job.status
        values = {
            "progress_ratio": status.progress.progress_percentage / 100,
            "restarts": status.restarts.total,
            "restarts_since_progress": status.restarts.since_progress,
            "restart_budget": job.spec.recovery.max_restarts,
            "lost_steps": status.restarts.lost_steps,
            "waiting_time_ratio": float(status.waiting_time_ratio or 0),
            "waiting_for_endpoint": is_true(status, ConditionType.WAITING_FOR_ENDPOINT),
            "reconcile_failing": is_failing,
            "not_learning": is_true(status, ConditionType.NOT_LEARNING),
            "stalls": status.restarts.by_cause.get("Stalled", 0),
            "gpus": status.sizing.gpus,
        }
        if last_step := status.restart_state.watch.still_since:
            values["last_step_timestamp_seconds"] = last_step.timestamp()
        if ratio := status.effective_training_time_ratio:
            values["effective_training_time_ratio"] = float(ratio)
        self._jobs[key] = _Job(
            str(job.spec.preset),
            str(job.spec.resources.device),
            status.phase,
            status.restarts.by_cause,
            values,
        )

    def remove(self, key: JobKey) -> None:
        """Remove the series of a job."""
        self._jobs.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield all series."""
        info = _family("info", "Information about a job.", "preset", "device")
        phase = _family("phase", "1 for the job's phase.", "phase")
        restarts = _family("restarts_by_cause", "Failed attempts by cause.", "cause")
        gauges = {name: _family(name, text) for name, text in GAUGES.items()}
        for key, job in self._jobs.items():
            info.add_metric((*key, job.preset, job.device), 1)
            for each in Phase:
                phase.add_metric((*key, str(each)), each is job.phase)
            for cause, count in job.causes.items():
                restarts.add_metric((*key, cause), count)
            for name, value in job.values.items():
                gauges[name].add_metric(key, value)
        yield from (info, phase, restarts, *gauges.values())


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=(*JOB, *labels))
