"""Kueue: a job waits for quota, trains, is preempted by a job with higher priority, and resumes."""

from collections.abc import Iterator

import pytest

from raggrpo_api.names import LABEL_CLUSTER, LABEL_JOB
from raggrpo_operator.core.spec.quantity import parse_quantity
from tools.kind import kueue
from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes
from tools.kind.training_job import (
    MAX_MINUTES,
    Status,
    TrainingJob,
    attempts,
    make_job,
    watch_ray_clusters,
)

pytestmark = pytest.mark.long

STEPS = 30
CHECKPOINT_STEPS = 4


@pytest.fixture(scope="module")
def queue(cluster: Kubernetes) -> Iterator[None]:
    """Kueue with one queue that fits one job; uninstalled afterwards."""
    kueue.install(cluster)
    yield
    kueue.remove(cluster)


@pytest.mark.row("B12", "B22")
@pytest.mark.timeout(3600)
def test_job_waits_for_quota_is_preempted_and_resumes(
    cluster: Kubernetes, operator: Images, queue: None, seeded: str
) -> None:
    job = TrainingJob(cluster, seeded, "patient")
    cluster.apply(kueue.make_local_queue(), kueue.make_competing_job("earlier"), namespace=seeded)
    wait_until_admitted(job, "earlier")
    # Without restarts, any use of the budget would fail the job.
    spec = {"scheduling": {"queueName": kueue.QUEUE}, "recovery": {"maxRestarts": 0}}
    with watch_ray_clusters(cluster, seeded) as clusters:
        cluster.apply(make_job(job.name, operator.trainer, STEPS, **spec), namespace=seeded)
        job.wait_until(lambda status: status.get("phase") == "Queued", "wait for quota")
        assert ray_pods(job) == ""

        job.kubectl("delete", "job", "earlier")
        status = job.wait_for_steps(CHECKPOINT_STEPS + 1, attempt=1)
        assert status["checkpoint"]["step"] >= CHECKPOINT_STEPS
        kueue.wait_for_usage(cluster, cpu=requested_cpu(status))
        template = job.ray_cluster()["spec"]["headGroupSpec"]["template"]
        assert template["spec"]["nodeSelector"] == kueue.FLAVOR

        cluster.apply(kueue.make_competing_job("urgent", priority=kueue.HIGH), namespace=seeded)
        wait_until_admitted(job, "urgent")
        assert ray_pods(job) == "", "the quota was reassigned before the pods were deleted"
        status = job.wait_until(is_preempted, "preemption")
        saved = status["checkpoint"]["step"]
        assert CHECKPOINT_STEPS < saved == status["attempts"][-1]["toStep"] < STEPS
        assert status["restarts"].get("sinceProgress", 0) == 0

        job.kubectl("delete", "job", "urgent")
        status = job.wait_for_steps(1, attempt=2)
        assert status["attempts"][0]["fromStep"] == saved
        status = job.wait_for_complete()

        assert attempts(status) == [(1, "Preempted", "First"), (2, "Succeeded", "NewCluster")]
        assert status["restarts"]["byCause"] == {"Preempted": 1}
        job.wait_until_freed(90)
        assert clusters() == [f"{job.cluster_name(1)} {each}" for each in ("ADDED", "DELETED")]
    kueue.wait_for_usage(cluster, cpu="0", memory="0")
    assert job.read_volume(operator.trainer)["steps"] == [*range(1, STEPS + 1)]


def wait_until_admitted(job: TrainingJob, rival: str) -> None:
    is_admitted = "--for=jsonpath={.spec.suspend}=false"
    minutes = f"--timeout={MAX_MINUTES}m"
    job.kubectl("wait", f"job/{rival}", is_admitted, minutes, deadline=60 * MAX_MINUTES + 30)


def is_preempted(status: Status) -> bool:
    """Return whether the first attempt has ended and the job is queued again."""
    return status["phase"] == "Queued" and "cause" in status["attempts"][-1]


def ray_pods(job: TrainingJob) -> str:
    """Return the names of the job's Ray pods, including terminating ones."""
    return job.kubectl("get", "pods", "-l", f"{LABEL_JOB}={job.name},{LABEL_CLUSTER}", "-o=name")


def requested_cpu(status: Status) -> str:
    """Return the total CPU request of the Ray pods according to the status."""
    sized = [each for each in status["sizing"]["pods"] if each["role"] in ("head", "trainer")]
    cpus = sum(parse_quantity(each["cpu"]) * each.get("replicas", 1) for each in sized)
    return f"{1000 * cpus:.0f}m"
