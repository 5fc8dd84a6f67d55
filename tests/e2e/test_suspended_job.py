"""A running job that is suspended and whose objects are deleted manually."""

import pytest

from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes
from tools.kind.training_job import MOUNT, TrainingJob, attempts, make_job

pytestmark = pytest.mark.long

STEPS = 30
MARK = "example.org/mine"


@pytest.mark.row("B23")
@pytest.mark.timeout(3600)
def test_job_survives_suspension_and_manual_deletions(
    cluster: Kubernetes, operator: Images, seeded: str
) -> None:
    job = TrainingJob(cluster, seeded, "calm")
    checkpoint = {"path": f"{MOUNT}/checkpoints", "everySteps": 100}
    cluster.apply(
        make_job("calm", operator.trainer, STEPS, checkpoint=checkpoint), namespace=seeded
    )
    job.wait_for_steps(2, attempt=1)
    ours = [
        f"raycluster/{job.cluster_name(1)}",
        f"configmap/{job.record(1)}",
        f"networkpolicy/{job.policy()}",
    ]
    for each in ours:
        job.kubectl("label", each, f"{MARK}=yes")
        job.kubectl("annotate", each, f"{MARK}=yes")

    job.patch(suspend=True)
    job.wait_until_freed(60)
    status = job.wait_until(lambda status: status["phase"] == "Suspended", "suspension")
    saved = status["checkpoint"]["step"]
    assert saved == status["attempts"][0]["toStep"] == status["progress"]["step"]

    job.kubectl("delete", "configmap", job.record(1))
    job.patch(suspend=False)
    status = job.wait_for_steps(1, attempt=2)
    assert status["attempts"][0]["fromStep"] == saved
    assert status.get("restarts", {}).get("total", 0) == 0
    assert job.cluster.read("networkpolicy", job.policy(), "-n", seeded)["metadata"]["labels"][MARK]

    job.kubectl("delete", "configmap", job.record(2))
    job.kubectl("wait", f"configmap/{job.record(2)}", "--for=create", "--timeout=60s")
    job.kubectl("delete", "raycluster", job.cluster_name(2), "--wait=false")
    status = job.wait_for_complete()

    assert attempts(status) == [
        (1, "Suspended", "First"),
        (2, "HeadLost", "NewCluster"),
        (3, "Succeeded", "NewCluster"),
    ]
