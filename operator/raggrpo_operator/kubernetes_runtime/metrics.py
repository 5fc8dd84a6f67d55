"""Prometheus metrics of the operator, with the meanings that controller-runtime gave them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import Phase
from raggrpo_operator.core.conditions import parse_timestamp

from .cluster_objects import JobKey
from .work_queue import QueueObserver

CONTROLLER = "raggrpojob"
JOB = ("namespace", "name")


class Metrics(QueueObserver):
    """All series; those of a job disappear with it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = {"namespace": "raggrpo_operator", "registry": self.registry}
        self._reconciles = Counter(
            "reconcile", "Rounds by result.", ["controller", "result"], **own
        )
        self._errors = Counter("reconcile_errors", "Rounds that failed.", ["controller"], **own)
        self._time = Histogram(
            "reconcile_time_seconds", "Duration of a round.", ["controller"], **own
        )
        self._depth = Gauge("workqueue_depth", "Jobs that wait for a round.", ["name"], **own)
        self._adds = Counter("workqueue_adds", "Jobs that became due.", ["name"], **own)
        self._retries = Counter("workqueue_retries", "Rounds to be repeated.", ["name"], **own)
        self._waits = Histogram(
            "workqueue_queue_duration_seconds", "Time a due job waits.", ["name"], **own
        )
        self.longest = Gauge(
            "workqueue_longest_running_processor_seconds", "Oldest round.", ["name"], **own
        ).labels(CONTROLLER)
        self._requests = Counter(
            "rest_client_requests", "Calls of the API server.", ["code", "method"], **own
        )
        self.leads = Gauge("leader_election_master_status", "1: this replica leads.", **own)
        self.kuberay = Gauge("kuberay_available", "1: the cluster knows RayClusters.", **own)
        job = {"namespace": "raggrpo_job", "registry": self.registry}
        self._info = Gauge("info", "A job.", [*JOB, "preset", "device"], **job)
        self._phase = Gauge("phase", "1 for the job's phase.", [*JOB, "phase"], **job)
        self._gauges = {
            name: Gauge(name, text, JOB, **job)
            for name, text in {
                "progress_ratio": "Share of the steps that are done.",
                "last_step_timestamp_seconds": "When the step counter last moved.",
                "restarts": "Restarts so far.",
                "restarts_since_progress": "Failures since the last new checkpoint.",
                "restart_budget": "Failures without a new checkpoint that are allowed.",
                "stalls": "Attempts that ended as stalled.",
                "gpus": "GPUs of the job.",
            }.items()
        }
        self._labels: dict[JobKey, tuple[str, str]] = {}

    def added(self, depth: int) -> None:
        """A job became due."""
        self._adds.labels(CONTROLLER).inc()
        self._depth.labels(CONTROLLER).set(depth)

    def begun(self, waited: float, depth: int) -> None:
        """A round began."""
        self._waits.labels(CONTROLLER).observe(waited)
        self._depth.labels(CONTROLLER).set(depth)

    def ended(self, seconds: float, result: str) -> None:
        """A round ended."""
        self._time.labels(CONTROLLER).observe(seconds)
        self._reconciles.labels(CONTROLLER, result).inc()
        if result != "success":
            self._errors.labels(CONTROLLER).inc()

    def retried(self) -> None:
        """A round is to be repeated."""
        self._retries.labels(CONTROLLER).inc()

    def called(self, method: str, code: int, _seconds: float) -> None:
        """The API server was called; code 0: it did not answer."""
        self._requests.labels(str(code or "<error>"), method).inc()

    def show(self, key: JobKey, job: RagGrpoJob) -> None:
        """Show the state of a job."""
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
            "stalls": status.restarts.by_cause.get("Stalled", 0),
            "gpus": status.sizing.gpus,
        }
        if moved := status.restart_state.step_seen_time:
            values["last_step_timestamp_seconds"] = parse_timestamp(moved).timestamp()
        for name, value in values.items():
            self._gauges[name].labels(*of_job).set(value)

    def forget(self, key: JobKey) -> None:
        """Remove the series of a job that is gone."""
        if key not in self._labels:
            return
        of_job = (key.namespace, key.name)
        self._info.remove(*of_job, *self._labels.pop(key))
        for phase in Phase:
            self._phase.remove(*of_job, str(phase))
        for gauge in self._gauges.values():
            gauge.remove(*of_job)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self.registry)
