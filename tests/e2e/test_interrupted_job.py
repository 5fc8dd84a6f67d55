"""One job, two ranks in two pods, that loses a worker, its driver, its operator and its head."""

import re

import pytest

from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import kill
from tools.kind.training_job import TrainingJob, attempts, make_job, watch_ray_clusters

STEPS = 24


@pytest.mark.row("A33", "B10", "B17", "B25", "B28")
@pytest.mark.timeout(3600)
def test_job_survives_all_losses_and_runs_each_step_once(
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
        shown = row(job)
        assert shown["PHASE"] == "Running"
        assert shown["STEP"].endswith(f"/{STEPS}")
        assert int(shown["%"]) > 0
        assert float(shown["REWARD"]) >= 0
        assert int(shown["CKPT"]) >= 4
        assert shown["RESTARTS"] == "0"

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
        lasted = [(each["fromStep"], each["toStep"]) for each in reversed(status["attempts"])]
        resumed, ended = [first for first, _ in lasted], [last for _, last in lasted]
        assert resumed[0] == 0
        # A pod that is deleted has the driver save first, and a killed driver leaves its ranks to
        # the next one, both perhaps after its step was last read.
        assert all(first >= last for first, last in zip(resumed[1:], ended, strict=False))
        assert [each["lostSteps"] for each in status["attempts"]] == [0, 0, 0, 0]
        assert status["restarts"]["total"] == 3
        assert row(job)["STEP"] == f"{STEPS}/{STEPS}"
        job.wait_until_freed(90)
        assert clusters() == [f"{job.cluster_name(1)} {each}" for each in ("ADDED", "DELETED")]

    found = job.read_volume(operator.trainer)
    assert found["steps"] == list(range(1, STEPS + 1))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(found["export"])
    job.patch(ttlSecondsAfterFinished=1)
    job.kubectl("wait", "rgj/lossy", "--for=delete", "--timeout=60s")


def row(job: TrainingJob) -> dict[str, str]:
    """Return what `kubectl get rgj` shows of the job, by column."""
    heads, values = job.kubectl("get", "rgj", job.name).splitlines()
    columns = re.finditer(r"\S+\s*", heads)  # a value may be missing
    return {each[0].strip(): values[each.start() : each.end()].strip() for each in columns}
