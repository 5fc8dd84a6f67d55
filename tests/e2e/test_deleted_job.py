"""Deleting a job or its namespace while no operator runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import scale
from tools.kind.training_job import TrainingJob, make_job, seed

pytestmark = pytest.mark.long

KINDS = "pods,services,endpointslices,configmaps,secrets,networkpolicies,rayclusters,rgj"
STEPS = 100


@pytest.fixture
def scalable_operator(cluster: Kubernetes, operator: Images) -> Iterator[Images]:
    """The operator, scaled up again after the test."""
    yield operator
    scale(cluster, 1)


def remaining_objects(job: TrainingJob) -> set[str]:
    """Return the objects of the job in its namespace."""
    names = job.kubectl("get", KINDS, "-o=name").split()
    return {each for each in names if f"/{job.name}" in each}


@pytest.mark.timeout(3600)
def test_deleted_job_and_namespace_terminate_without_operator(
    cluster: Kubernetes, scalable_operator: Images, seeded: str, model: Path
) -> None:
    image = scalable_operator.trainer
    deleted = TrainingJob(cluster, seeded, "deleted")
    with cluster.namespace(f"{seeded}-too", restricted=True) as other:
        seed(cluster, other, model)
        orphan = TrainingJob(cluster, other, "orphan")
        for job in (deleted, orphan):
            cluster.apply(make_job(job.name, image, STEPS), namespace=job.namespace)
        for job in (deleted, orphan):
            job.wait_until(lambda status: status.get("phase") == "Starting", "driver")
            assert len(remaining_objects(job)) > 5

        scale(cluster, 0)
        cluster.kubectl("delete", "namespace", other, "--wait=false")
        deleted.kubectl("delete", "rgj", "deleted", "--timeout=60s")
        deleted.wait_until_freed(90)
        if remaining := remaining_objects(deleted):
            deleted.kubectl("wait", *remaining, "--for=delete", "--timeout=30s")
        cluster.kubectl("wait", f"namespace/{other}", "--for=delete", "--timeout=90s")
