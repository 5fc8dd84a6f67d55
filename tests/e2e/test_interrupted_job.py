"""A job with two ranks in two pods loses a worker, its driver, its operator and its head."""

import re

import pytest

from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import kill
from tools.kind.training_job import TrainingJob, attempts, make_job, watch_ray_clusters

STEPS = 24


@pytest.mark.row("A33", "B10", "B17", "B25", "B28")
@pytest.mark.timeout(3600)
def test_job_survives_worker_driver_operator_and_head_losses(
    cluster: Kubernetes, operator: Images, seeded: str
) -> None:
    job = TrainingJob(cluster, seeded, "lossy")
    resources = {"device": "CPU", "nodes": 2, "cpu": "300m"}
    with watch_ray_clusters(cluster, seeded) as clusters:
        cluster.apply(
            make_job("lossy", operator.trainer, STEPS, resources=resources), namespace=seeded
        )

        status = job.wait_for_steps(5, attempt=1)
        assert status["checkpoint"]["worldSize"] == 2
        columns = row(job)
        assert columns["PHASE"] == "Running"
        assert columns["STEP"].endswith(f"/{STEPS}")
        assert int(columns["%"]) > 0
        assert float(columns["REWARD"]) >= 0
        assert int(columns["CKPT"]) >= 4
        assert columns["RESTARTS"] == ""

        job.kubectl("delete", "pod", job.pod("trainer"), "--wait=false")
        job.wait_for_steps(5, attempt=2)

        job.kill_driver()
        kill(cluster)
        job.wait_for_steps(1, attempt=3)
        assert job.submissions() == {
            "lossy-a1": "FAILED",
            "lossy-a2": "FAILED",
            "lossy-a3": "RUNNING",
        }

        job.kubectl("delete", "pod", job.pod("head"), "--wait=false")
        status = job.wait_for_complete()

        assert attempts(status) == [
            (1, "WorkerLost", "First"),
            (2, "ProgramError", "WarmCluster"),
            (3, "HeadLost", "WarmCluster"),
            (4, "Succeeded", "WarmCluster"),
        ]
        oldest_first = [*reversed(status["attempts"])]
        resumed = [each["fromStep"] for each in oldest_first]
        ended = [each["toStep"] for each in oldest_first]
        assert resumed[0] == 0
        # A deleted pod makes the driver save first, and a killed driver leaves its ranks to the
        # next one. Both may happen after the step was last read.
        assert all(first >= last for first, last in zip(resumed[1:], ended, strict=False))
        assert [each.get("lostSteps", 0) for each in status["attempts"]] == [0, 0, 0, 0]
        assert status["restarts"]["total"] == 3
        assert row(job)["STEP"] == f"{STEPS}/{STEPS}"
        job.wait_until_freed(90)
        assert clusters() == [f"{job.cluster_name(1)} {each}" for each in ("ADDED", "DELETED")]

    volume = job.read_volume(operator.trainer)
    assert volume["steps"] == list(range(1, STEPS + 1))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(volume["export"])
    job.patch(ttlSecondsAfterFinished=1)
    job.kubectl("wait", "rgj/lossy", "--for=delete", "--timeout=60s")


def row(job: TrainingJob) -> dict[str, str]:
    """Return the row of `kubectl get rgj` by column."""
    header, values = job.kubectl("get", "rgj", job.name).splitlines()
    columns = re.finditer(r"\S+\s*", header)  # a value may be missing
    return {each[0].strip(): values[each.start() : each.end()].strip() for each in columns}
