"""`kubectl raggrpo logs` where kubelet, KubeRay and the trainer are real: head, volume, nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.images import Images
from cluster.kubernetes import Kubernetes
from cluster.objects import a_claim, a_pod, mounting
from kubectl_plugin import command, kubectl_raggrpo

SEED = Path(__file__).parent / "seed_volume.py"
MOUNT = "/mnt/work"
STEPS = 6
MINUTES = 8


def a_job(image: str) -> dict[str, Any]:
    return {
        "apiVersion": "raggrpo.io/v1alpha1",
        "kind": "RagGrpoJob",
        "metadata": {"name": "logged"},
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
            "training": {"totalSteps": STEPS, "precision": "FP32"},
            "checkpoint": {"path": f"{MOUNT}/checkpoints", "everySteps": 3},
            "resources": {"device": "CPU", "cpu": "300m"},
            "volumes": [{"name": "work", "claimName": "work", "mountPath": MOUNT}],
        },
    }


@pytest.mark.timeout(60 * (MINUTES + 8))
def test_the_drivers_log_is_read_from_the_head_while_it_runs_and_from_the_volume_afterwards(
    cluster: Kubernetes, operator: Images, namespace: str
) -> None:
    seed = ["python", "-c", SEED.read_text(), MOUNT]
    pod = a_pod("seed", operator.trainer, seed, env=[{"name": "HOME", "value": "/tmp"}])
    cluster.apply(a_claim("work"), mounting(pod, "work", MOUNT), namespace=namespace)
    wait(cluster, namespace, "pod/seed", "--for=jsonpath={.status.phase}=Succeeded")
    cluster.apply(a_job(operator.trainer), namespace=namespace)
    wait(cluster, namespace, "rgj/logged", "--for=jsonpath={.status.phase}=Running")

    followed = logs(cluster, namespace, "--follow")  # ends with the driver

    assert followed.returncode == 0, followed.stderr
    assert f"step {STEPS}/{STEPS}" in followed.stdout
    wait(cluster, namespace, "rgj/logged", "--for=condition=Complete")
    wait(cluster, namespace, "rayclusters", "--all", "--for=delete")
    kept = logs(cluster, namespace)
    assert kept.returncode == 0, kept.stderr
    assert kept.stdout.startswith(followed.stdout[:1000])
    assert f"step {STEPS}/{STEPS}" in kept.stdout
    assert readers(cluster, namespace) == []

    cluster.kubectl("delete", "pod", "seed", "-n", namespace)
    status = cluster.read("rgj", "logged", "-n", namespace)["status"]
    cluster.write_status("rgj", "logged", {**status, "attempt": 2}, namespace)
    never = logs(cluster, namespace, "--attempt", "2")
    assert never.returncode == 1
    assert "there is no log of attempt 2 on the volume; there are records of attempts 1" in (
        never.stderr
    )
    assert readers(cluster, namespace) == []

    interrupted_while_reading(cluster, namespace)

    cluster.kubectl("delete", "pvc", "work", "-n", namespace)
    unreadable = logs(cluster, namespace, "--attempt", "1")
    assert unreadable.returncode == 1
    assert 'persistentvolumeclaim "work" not found' in unreadable.stderr
    assert len(unreadable.stderr.splitlines()) == 1
    assert readers(cluster, namespace) == []


def interrupted_while_reading(cluster: Kubernetes, namespace: str) -> None:
    """Ctrl-C as soon as the reader pod is there leaves none behind."""
    arguments = ("logs", "logged", "--attempt", "1", "-n", namespace)
    reading = subprocess.Popen(
        command(*arguments, kubeconfig=cluster.kubeconfig),
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    cluster.kubectl(
        "wait", "pod", "-l", "app.kubernetes.io/component=reader", "--for=create",
        "--timeout=60s", "-n", namespace,
    )  # fmt: skip
    reading.send_signal(signal.SIGINT)
    assert reading.wait(60) == 130
    assert readers(cluster, namespace) == []


def wait(cluster: Kubernetes, namespace: str, *what: str) -> None:
    cluster.kubectl(
        "wait", *what, f"--timeout={MINUTES}m", "-n", namespace, deadline=60 * MINUTES + 30
    )


def logs(
    cluster: Kubernetes, namespace: str, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return kubectl_raggrpo(
        "logs", "logged", "-n", namespace, *arguments, kubeconfig=cluster.kubeconfig, seconds=420
    )


def readers(cluster: Kubernetes, namespace: str) -> list[str]:
    """Return the reader pods that are not being deleted."""
    found = cluster.read("pods", "-l", "app.kubernetes.io/component=reader", "-n", namespace)
    return [
        each["metadata"]["name"]
        for each in found["items"]
        if "deletionTimestamp" not in each["metadata"]
    ]
