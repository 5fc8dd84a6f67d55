"""The operator's Prometheus metrics, with the same meanings as in controller-runtime."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import ConditionType, Phase
from raggrpo_operator.core.state.conditions import is_true
from raggrpo_operator.kube.cluster_objects import JobKey

from .work_queue import QueueObserver

CONTROLLER = "raggrpojob"
OPERATOR_PREFIX, JOB_PREFIX = "raggrpo_operator", "raggrpo_job"
JOB = ("namespace", "name")
JOB_GAUGES = {
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


class Metrics(QueueObserver):
    """All series; a job's series disappear with it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = self._counter("reconcile", "Rounds.", "controller", "result")
        self._errors = self._counter("reconcile_errors", "Rounds that failed.", "controller")
        self._time = self._histogram("reconcile_time_seconds", "A round.", "controller")
        self._depth = self._gauge("workqueue_depth", "Jobs that wait for a round.", "name")
        self._adds = self._counter("workqueue_adds", "Jobs that became due.", "name")
        self._retries = self._counter("workqueue_retries", "Rounds to be repeated.", "name")
        self._waits = self._histogram(
            "workqueue_queue_duration_seconds", "How long a due job waits.", "name"
        )
        longest = "workqueue_longest_running_processor_seconds"
        self.longest = self._gauge(longest, "Age of the oldest round.", "name").labels(CONTROLLER)
        self._requests = self._counter(
            "rest_client_requests", "Calls of the API server.", "code", "method"
        )
        self.leads = self._gauge("leader_election_master_status", "1: this replica leads.")
        self.kuberay = self._gauge("kuberay_available", "1: the cluster knows RayClusters.")
        self._info = self._job_gauge("info", "A job.", *JOB, "preset", "device")
        self._phase = self._job_gauge("phase", "1 for the job's phase.", *JOB, "phase")
        self._gauges = {
            name: self._job_gauge(name, text, *JOB) for name, text in JOB_GAUGES.items()
        }
        ends = "Failed attempts by what ended them."
        self._by_cause = self._job_gauge("restarts_by_cause", ends, *JOB, "cause")
        self._labels: dict[JobKey, tuple[str, str]] = {}
        self._causes: dict[JobKey, set[str]] = {}

    def added(self, depth: int) -> None:
        """Count a job that became due."""
        self._adds.labels(CONTROLLER).inc()
        self._depth.labels(CONTROLLER).set(depth)

    def begun(self, waited: float, depth: int) -> None:
        """Count the start of a round."""
        self._waits.labels(CONTROLLER).observe(waited)
        self._depth.labels(CONTROLLER).set(depth)

    def ended(self, seconds: float, result: str) -> None:
        """Count the end of a round."""
        self._time.labels(CONTROLLER).observe(seconds)
        self._reconciles.labels(CONTROLLER, result).inc()
        if result != "success":
            self._errors.labels(CONTROLLER).inc()

    def retried(self) -> None:
        """Count a round to be repeated."""
        self._retries.labels(CONTROLLER).inc()

    def called(self, method: str, code: int, _seconds: float) -> None:
        """Count a call to the API server; code 0: it did not answer."""
        self._requests.labels(str(code or "<error>"), method).inc()

    def show(self, key: JobKey, job: RagGrpoJob) -> None:
        """Update the series of a job."""
        status, of_job = job.status, (key.namespace, key.name)
        labels = (str(job.spec.preset), str(job.spec.resources.device))
        if self._labels.get(key, labels) != labels:
            self._info.remove(*of_job, *self._labels[key])
        self._labels[key] = labels
        self._info.labels(*of_job, *labels).set(1)
        for phase in Phase:
            self._phase.labels(*of_job, str(phase)).set(phase is status.phase)
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
        for name, value in values.items():
            self._gauges[name].labels(*of_job).set(value)
        self._show_causes(key, status.restarts.by_cause)

    def forget(self, key: JobKey) -> None:
        """Remove the series of a deleted job."""
        if key not in self._labels:
            return
        of_job = (key.namespace, key.name)
        self._info.remove(*of_job, *self._labels.pop(key))
        self._show_causes(key, {})
        for phase in Phase:
            self._phase.remove(*of_job, str(phase))
        for gauge in self._gauges.values():
            gauge.remove(*of_job)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self.registry)

    def _show_causes(self, key: JobKey, counts: Mapping[str, int]) -> None:
        for cause in self._causes.pop(key, set()) - counts.keys():
            self._by_cause.remove(key.namespace, key.name, cause)
        for cause, count in counts.items():
            self._by_cause.labels(key.namespace, key.name, cause).set(count)
        if counts:
            self._causes[key] = set(counts)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=OPERATOR_PREFIX, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace=OPERATOR_PREFIX, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=OPERATOR_PREFIX, registry=self.registry)

    def _job_gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=JOB_PREFIX, registry=self.registry)
