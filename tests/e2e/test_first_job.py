"""From apply to Succeeded: what a user sees of a job that simply works."""

from pathlib import Path
from typing import Any

import pytest

from cluster.images import Images
from cluster.kubernetes import Kubernetes
from cluster.objects import a_claim, a_pod, mounting

SEED = Path(__file__).parent / "seed_volume.py"
MOUNT = "/mnt/work"
STEPS = 8
MINUTES = 8


def a_seeding_pod(image: str) -> dict[str, Any]:
    """Return a pod that writes model and data to the claim."""
    command = ["python", "-c", SEED.read_text(), MOUNT]
    return mounting(
        a_pod("seed", image, command, env=[{"name": "HOME", "value": "/tmp"}]), "work", MOUNT
    )


def a_job(image: str) -> dict[str, Any]:
    return {
        "apiVersion": "raggrpo.io/v1alpha1",
        "kind": "RagGrpoJob",
        "metadata": {"name": "first"},
        "spec": {
            "image": image,
            "model": {"path": f"{MOUNT}/model"},
            "data": {
                "trainFiles": [f"{MOUNT}/train.jsonl"],
                "trainBatchSize": 4,
                "maxPromptLength": 16,
                "maxResponseLength": 8,
            },
            "rollout": {"n": 4, "temperature": 1.0},
            "training": {"totalSteps": STEPS, "learningRate": 1e-3, "precision": "FP32"},
            "checkpoint": {"path": f"{MOUNT}/checkpoints", "everySteps": 4},
            "resources": {"device": "CPU", "nodes": 2, "cpu": "300m"},
            "volumes": [{"name": "work", "claimName": "work", "mountPath": MOUNT}],
        },
    }


@pytest.mark.timeout(60 * (MINUTES + 4))
def test_a_job_with_ranks_in_two_pods_trains_to_its_end(
    cluster: Kubernetes, operator: Images, namespace: str
) -> None:
    cluster.apply(a_claim("work"), a_seeding_pod(operator.trainer), namespace=namespace)
    cluster.kubectl(
        "wait", "pod/seed", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s",
        "-n", namespace, deadline=200,
    )  # fmt: skip

    cluster.apply(a_job(operator.trainer), namespace=namespace)
    cluster.kubectl(
        "wait", "rgj/first", "--for=condition=Complete", f"--timeout={MINUTES}m", "-n", namespace,
        deadline=60 * MINUTES + 30,
    )  # fmt: skip

    job = cluster.read("rgj", "first", "-n", namespace)
    assert job["status"]["phase"] == "Succeeded"
    assert job["status"]["progress"]["stepOfTotal"] == f"{STEPS}/{STEPS}"
    assert job["status"]["restarts"].get("total", 0) == 0
    assert job["status"]["checkpoint"]["worldSize"] == 2
    assert cluster.read("rayclusters", "-n", namespace)["items"] == []
