"""A retrieval service is down before a job starts, for ten minutes during training, and flaps.

In the first case the job has no pods, in the others it keeps all of its pods. No attempt ends.
"""

import time
from typing import Any

import pytest

from tools.kind.images import Images
from tools.kind.jobs import condition, wait_for_status
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_pod, with_claim
from tools.kind.training_job import (
    CLAIM,
    MOUNT,
    Status,
    TrainingJob,
    attempts,
    make_job,
    watch_ray_clusters,
)

pytestmark = [pytest.mark.timeout(3600), pytest.mark.long]

STEPS = 60
NAME = "kb"
PORT = 8000
NOTICED_SECONDS = 120
"""Maximum time until the job reports an outage; a step that has its passages completes first."""
OUTAGE_SECONDS = 600
FLAPS = 3


class Service:
    """A retriever outside the job, behind a Service that is kept."""

    def __init__(self, cluster: Kubernetes, namespace: str, image: str) -> None:
        self._cluster, self._namespace, self._image = cluster, namespace, image
        spec = {"selector": {"app": NAME}, "ports": [{"port": PORT, "targetPort": PORT}]}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec}
        cluster.apply(service, namespace=namespace)

    def start(self) -> None:
        command = ["python", "-m", "raggrpo_retriever", "--corpus", f"{MOUNT}/corpus.jsonl"]
        command += ["--host", "0.0.0.0", "--port", str(PORT)]
        ready = {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1}
        pod = make_pod(NAME, self._image, command, readinessProbe=ready)
        pod["metadata"]["labels"] = {"app": NAME}
        self._cluster.apply(with_claim(pod, CLAIM, MOUNT), namespace=self._namespace)
        self._kubectl("wait", f"pod/{NAME}", "--for=condition=Ready", "--timeout=120s")

    def kill(self) -> None:
        self._kubectl("delete", "pod", NAME, "--grace-period=0", "--force", "--wait=true")

    def _kubectl(self, *arguments: str) -> None:
        self._cluster.kubectl("-n", self._namespace, *arguments)


@pytest.fixture
def service(cluster: Kubernetes, operator: Images, seeded: str) -> Service:
    return Service(cluster, seeded, operator.trainer)


def is_waiting(status: Status) -> bool:
    return bool(condition(status, "WaitingForEndpoint")["status"] == "True")


def pods_of(job: TrainingJob) -> set[str]:
    labels = f"raggrpo.io/job-name={job.name}"
    return set(
        job.kubectl("get", "pods", "-l", labels, "-o=jsonpath={.items[*].metadata.uid}").split()
    )


def steps_done(status: Status) -> int:
    return int(status["progress"].get("step", 0))


@pytest.mark.row("D10")
def test_outage_delays_job_without_restart(
    cluster: Kubernetes, operator: Images, seeded: str, service: Service
) -> None:
    job = TrainingJob(cluster, seeded, "patient")
    with watch_ray_clusters(cluster, seeded) as clusters:
        cluster.apply(_with_service(operator.trainer), namespace=seeded)

        # Before the first attempt the job waits without a Ray cluster, between checks without pods.
        status = wait_for_status(cluster, seeded, job.name, is_waiting, NOTICED_SECONDS)
        message = condition(status, "WaitingForEndpoint")["message"]
        assert message.startswith("endpoint kb (http://kb:8000/retrieve): ")
        assert status["phase"] == "Preflight"
        _wait_until_without_pods(job)
        assert clusters() == []
        service.start()

        job.wait_for_steps(2, attempt=1)
        pods = pods_of(job)
        status = _outage(cluster, job, service, OUTAGE_SECONDS)
        assert status["progress"]["stage"] == "WaitingForEndpoint"
        assert status["attempts"][0]["waitingSeconds"] >= OUTAGE_SECONDS - 30
        done = steps_done(status)

        for _ in range(FLAPS):
            job.wait_until(lambda now, done=done: steps_done(now) > done, "a further step")
            done = steps_done(_outage(cluster, job, service, 5))

        assert pods_of(job) == pods
        status = job.wait_for_complete()
        assert attempts(status) == [(1, "Succeeded", "First")]
        assert status.get("restarts", {}).get("total", 0) == 0
        assert float(status["waitingTimeRatio"]) > 0.3
        job.wait_until_freed(90)
        name = job.cluster_name(1)
        assert clusters() == [f"{name} ADDED", f"{name} DELETED"]
    assert job.read_volume(operator.trainer)["steps"] == list(range(1, STEPS + 1))


def test_outage_deadline_fails_job_and_retry_resumes_it(
    cluster: Kubernetes, operator: Images, seeded: str, service: Service
) -> None:
    service.start()
    job = TrainingJob(cluster, seeded, "patient")
    deadlines = {"deadlines": {"outageSeconds": 30}}
    cluster.apply(_with_service(operator.trainer, recovery=deadlines), namespace=seeded)
    job.wait_for_steps(2, attempt=1)

    service.kill()
    status = wait_for_status(
        cluster, seeded, job.name, lambda now: now.get("phase") == "Failed", NOTICED_SECONDS + 120
    )

    failed = condition(status, "Failed")
    assert failed["reason"] == "EndpointDown"
    assert "limit 30 s): endpoint kb since" in failed["message"]
    assert attempts(status) == [(1, "EndpointDown", "First")]
    job.wait_until_freed(120)
    service.start()
    job.kubectl("annotate", "rgj", job.name, "raggrpo.io/retry=service-is-back")
    status = job.wait_for_complete()
    [second, first] = status["attempts"]
    assert second["fromStep"] >= first["toStep"]


def _with_service(image: str, **spec: Any) -> dict[str, Any]:
    retrieval = {
        "mode": "Prompt",
        "promptTemplate": "{passages} {prompt}",
        "passageTemplate": "{text} ",
        "maxPassageTokens": 4,
        # Cached answers would hide an outage.
        "endpoints": [
            {"name": NAME, "url": f"http://{NAME}:{PORT}/retrieve", "topK": 1, "cache": False}
        ],
    }
    return make_job("patient", image, STEPS, retrieval=retrieval, **spec)


def _outage(
    cluster: Kubernetes, job: TrainingJob, service: Service, seconds: float
) -> dict[str, Any]:
    """Stop the service for `seconds`; return the job's status before the restart."""
    service.kill()
    wait_for_status(cluster, job.namespace, job.name, is_waiting, NOTICED_SECONDS)
    time.sleep(seconds)
    status = wait_for_status(cluster, job.namespace, job.name, is_waiting, NOTICED_SECONDS)
    service.start()
    wait_for_status(
        cluster, job.namespace, job.name, lambda now: not is_waiting(now), NOTICED_SECONDS
    )
    return status


def _wait_until_without_pods(job: TrainingJob) -> None:
    deadline = time.monotonic() + NOTICED_SECONDS
    while pods_of(job):
        assert time.monotonic() < deadline, "preflight pods were not deleted"
        time.sleep(0.5)
