"""`kubectl raggrpo logs` with real kubelet, KubeRay and trainer: from head, volume, or missing."""

import os
import signal
import subprocess
import sys

import pytest

from support.kubernetes.kubectl_plugin import command, kubectl_raggrpo
from tools.kind.images import Images
from tools.kind.kind_cluster import BASE_IMAGE
from tools.kind.kubernetes import Kubernetes
from tools.kind.training_job import CLAIM, MAX_MINUTES, TrainingJob, make_job

pytestmark = pytest.mark.long

READERS = "app.kubernetes.io/component=reader"
STEPS = 6
LAST = "exported the model of step"


@pytest.mark.row("B16")
@pytest.mark.timeout(1800)
def test_logs_are_read_from_head_during_run_and_from_volume_afterwards(
    cluster: Kubernetes, operator: Images, seeded: str
) -> None:
    job = TrainingJob(cluster, seeded, "logged")
    cluster.apply(make_job("logged", operator.trainer, STEPS), namespace=seeded)
    job.wait_for_steps(1, attempt=1)

    followed = logs(job, "--follow")  # returns when the driver exits

    assert followed.returncode == 0, followed.stderr
    assert LAST in followed.stdout
    job.wait_for_complete()
    job.kubectl("wait", "rayclusters", "--all", "--for=delete", "--timeout=90s")
    stored = logs(job)
    assert stored.returncode == 0, stored.stderr
    assert stored.stdout.startswith(followed.stdout[:1000])
    assert LAST in stored.stdout
    assert readers(job) == []
    interrupt_reader(job)
    assert readers(job) == []


@pytest.mark.timeout(600)
def test_unreadable_logs_are_reported_and_reader_pod_is_deleted(
    cluster: Kubernetes, operator: Images, seeded: str
) -> None:
    job = TrainingJob(cluster, seeded, "silent")
    cluster.apply(make_job("silent", BASE_IMAGE, STEPS, suspend=True), namespace=seeded)
    job.wait_until(lambda status: status.get("phase") == "Suspended", "suspension")
    # An attempt that was lost before it wrote a log.
    record = {"number": 1, "cause": "HeadLost", "started": "2026-11-21T12:00:00Z"}
    cluster.write_status("rgj", "silent", {"attempt": 1, "attempts": [record]}, seeded)

    unwritten = logs(job)
    job.kubectl("delete", "pod/copy-model", f"pvc/{CLAIM}")
    unreadable = logs(job)

    assert unwritten.returncode == unreadable.returncode == 1
    assert "attempt 1 has no log: cannot access" in unwritten.stderr
    assert f'persistentvolumeclaim "{CLAIM}" not found' in unreadable.stderr
    assert len(unwritten.stderr.splitlines()) == len(unreadable.stderr.splitlines()) == 1
    assert readers(job) == []


def interrupt_reader(job: TrainingJob) -> None:
    """Send Ctrl-C to `kubectl raggrpo logs` once its reader pod exists."""
    reading = subprocess.Popen(
        command("logs", job.name, "-n", job.namespace, kubeconfig=job.cluster.kubeconfig),
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    job.kubectl("wait", "pod", "-l", READERS, "--for=create", "--timeout=60s")
    reading.send_signal(signal.SIGINT)
    assert reading.wait(60) == 130


def logs(job: TrainingJob, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return kubectl_raggrpo(
        "logs", job.name, "-n", job.namespace, *arguments, kubeconfig=job.cluster.kubeconfig,
        seconds=60 * MAX_MINUTES,
    )  # fmt: skip


def readers(job: TrainingJob) -> list[str]:
    """Return the reader pods; they are deleted without a grace period."""
    return job.kubectl("get", "pods", "-l", READERS, "-o=name").split()
