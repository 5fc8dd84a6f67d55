"""Prometheus metrics of the operator, named and defined as in controller-runtime."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .job_series import JobSeries
from .work_queue import QueueObserver

CONTROLLER = "raggrpojob"
OPERATOR_PREFIX = "raggrpo_operator"


class Metrics(QueueObserver):
    """All Prometheus series of the operator and its jobs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = self._counter("reconcile", "Reconciles.", "controller", "result")
        self._errors = self._counter("reconcile_errors", "Failed reconciles.", "controller")
        self._time = self._histogram(
            "reconcile_time_seconds", "Duration of a reconcile.", "controller"
        )
        self._depth = self._gauge("workqueue_depth", "Jobs due for a reconcile.", "name")
        self._adds = self._counter("workqueue_adds", "Jobs added to the queue.", "name")
        self._retries = self._counter("workqueue_retries", "Retried reconciles.", "name")
        self._waits = self._histogram(
            "workqueue_queue_duration_seconds", "Time a due job waits in the queue.", "name"
        )
        name = "workqueue_longest_running_processor_seconds"
        self.longest_reconcile = self._gauge(
            name, "Duration of the longest running reconcile.", "name"
        ).labels(CONTROLLER)
        self._requests = self._counter(
            "rest_client_requests", "Requests to the API server.", "code", "method"
        )
        self.is_leader = self._gauge(
            "leader_election_master_status", "1 if this replica is the leader."
        )
        self.kuberay = self._gauge("kuberay_available", "1 if the cluster serves RayClusters.")
        self.rejected_namespaces = self._gauge(
            "namespaces_of_other_operators", "Namespaces that another operator reconciles."
        )
        self.jobs = JobSeries()
        self.registry.register(self.jobs)

    def on_added(self, depth: int) -> None:
        """Count a job that became due."""
        self._adds.labels(CONTROLLER).inc()
        self._depth.labels(CONTROLLER).set(depth)

    def on_started(self, waited: float, depth: int) -> None:
        """Count the start of a reconcile."""
        self._waits.labels(CONTROLLER).observe(waited)
        self._depth.labels(CONTROLLER).set(depth)

    def on_finished(self, seconds: float, result: str) -> None:
        """Count the end of a reconcile."""
        self._time.labels(CONTROLLER).observe(seconds)
        self._reconciles.labels(CONTROLLER, result).inc()
        if result != "success":
            self._errors.labels(CONTROLLER).inc()

    def on_retry(self) -> None:
        """Count a retried reconcile."""
        self._retries.labels(CONTROLLER).inc()

    def record_call(self, method: str, code: int, _seconds: float) -> None:
        """Count a request to the API server; code 0 stands for no response."""
        self._requests.labels(str(code or "<error>"), method).inc()

    def text(self) -> bytes:
        """Return all series in the Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=OPERATOR_PREFIX, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace=OPERATOR_PREFIX, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=OPERATOR_PREFIX, registry=self.registry)
