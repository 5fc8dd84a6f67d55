"""What happens around a running job: its policy, its key, its node, a second operator, a quota."""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.kubectl_plugin import kubectl_raggrpo
from tools.kind.go_programs import tool_folder
from tools.kind.images import REPOSITORY, Images
from tools.kind.jobs import condition, events_about, has_ended, make_small_job, wait_for_status
from tools.kind.kind_cluster import run
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import RELEASE, SYSTEM, kill
from tools.kind.training_job import TrainingJob, attempts, make_job

pytestmark = pytest.mark.timeout(1800)  # the first test waits for cluster and images

NAME = "steady"
STEPS = 3000
KEY = f"{RELEASE}-key"
START_GRACE = timedelta(seconds=120)
SYNC_SECONDS = 180
"""Time in which the kubelet mounts a changed Secret."""


@pytest.fixture(scope="module")
def job(cluster: Kubernetes, operator: Images, shared: str) -> Iterator[TrainingJob]:
    """A job that runs while the tests disturb it, next to a job with a wrong image."""
    steady = make_job(NAME, operator.trainer, STEPS)
    wrong = make_small_job("wrong-image", operator.trainer, {"spec.image": "raggrpo/absent:1"})
    cluster.apply(steady, wrong, namespace=shared)
    running = TrainingJob(cluster, shared, NAME)
    running.wait_for_steps(1, attempt=1)
    yield running
    cluster.kubectl("delete", "rgj", "-n", shared, NAME, "wrong-image", "--ignore-not-found")


def reason_of(kind: str, reason: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda status: bool(condition(status, kind)["reason"] == reason)


def test_deleted_network_policy_of_running_job_is_restored(job: TrainingJob) -> None:
    policy = job.policy()
    before = job.cluster.read("networkpolicy", policy, "-n", job.namespace)

    job.kubectl("delete", "networkpolicy", policy)

    job.kubectl("wait", f"networkpolicy/{policy}", "--for=create", "--timeout=30s")
    after = job.cluster.read("networkpolicy", policy, "-n", job.namespace)
    assert after["spec"] == before["spec"]


def test_driver_log_is_in_the_output_of_the_head(job: TrainingJob) -> None:
    driver = kubectl_raggrpo(
        "logs", NAME, "-n", job.namespace, kubeconfig=job.cluster.kubeconfig
    ).stdout.splitlines()

    time.sleep(2)  # the head copies once a second
    head = job.kubectl("logs", job.pod("head"), "-c", "ray-head").splitlines()

    assert len(driver) > 3
    assert set(driver) <= set(head)


@pytest.mark.row("B35")
def test_plugin_reports_compares_and_checks_running_job(job: TrainingJob, tmp_path: Path) -> None:
    def plugin(*arguments: object) -> str:
        done = kubectl_raggrpo(
            *arguments, "-n", job.namespace, kubeconfig=job.cluster.kubeconfig, seconds=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    plugin("report", NAME, "--dir", tmp_path)
    assert NAME in (tmp_path / "report.html").read_text()
    assert NAME in plugin("compare", NAME, NAME)
    assert NAME in plugin("top")
    status = json.loads(plugin("status", NAME, "-o", "json"))
    assert status["status"]["phase"] == "Running"
    assert plugin("check", NAME).startswith("ok ")


def test_wide_columns_show_reason_and_status_has_no_zeros(job: TrainingJob) -> None:
    heading, row = job.kubectl("get", "rgj", NAME, "-o", "wide").splitlines()
    assert heading.split()[-1] == "REASON"
    assert row.split()[-1] == condition(job.status(), "Ready")["reason"] != "NotReady"
    # Measured values may be zero, and an attempt may start from step 0.
    measured = ("fromStep", "conditions", "baseline", "metrics")
    zeros = [each for each in zero_paths(job.status()) if not set(measured) & set(each)]
    assert zeros == []


def zero_paths(value: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the paths of zeros and empty values."""
    if value in (0, "", None):
        yield path
    children = value.items() if isinstance(value, dict) else ()
    for name, each in children:
        yield from zero_paths(each, *path, name)
    for each in value if isinstance(value, list) else ():
        yield from zero_paths(each, *path)


def test_changed_key_is_reported_and_restored_without_operator_restart(
    job: TrainingJob,
) -> None:
    cluster = job.cluster
    old = cluster.read("secret", KEY, "-n", SYSTEM)["data"]["current"]
    new = base64.b64encode(b"another installation key, long enough").decode()
    try:
        patch_key(cluster, {"current": new})
        wait_for_reason(job, "InstallationKeyChanged", SYNC_SECONDS)
        kill(cluster)
        status = wait_for_reason(job, "InstallationKeyMissing", SYNC_SECONDS)
        assert f"{SYSTEM}/{KEY}" in condition(status, "Reconciling")["message"]
        patch_key(cluster, {"previous": old})
        wait_for_reason(job, "Reconciled", SYNC_SECONDS)
        step = job.status()["progress"]["step"]
        status = job.wait_until(lambda now: now["progress"]["step"] > step, "progress")
    finally:
        patch_key(cluster, {"current": old, "previous": None})

    assert attempts(status) == [(1, None, "First")]


def test_second_operator_backs_off(job: TrainingJob, operator: Images) -> None:
    helm = [str(tool_folder("helm") / "helm"), "--kubeconfig", str(job.cluster.kubeconfig)]
    values = [
        f"image.tag={operator.operator.rpartition(':')[2]}",
        f"trainerImage.tag={operator.trainer.rpartition(':')[2]}",
        "crds.install=false",
        f"watchNamespaces={{{job.namespace}}}",
    ]
    chart = str(REPOSITORY / "helm" / "raggrpo-operator")
    where = ["--namespace", "e2e-second", "--create-namespace"]
    run([*helm, "install", "second", chart, *where, "--set", ",".join(values)])
    try:
        deadline = time.monotonic() + SYNC_SECONDS
        while not (events := other_operator_events(job)):
            assert time.monotonic() < deadline
            time.sleep(1)
        assert f"{SYSTEM}/{RELEASE}" in events[0]["note"]
        step = job.status()["progress"]["step"]
        status = job.wait_until(lambda now: now["progress"]["step"] > step, "progress")
    finally:
        run([*helm, "uninstall", "second", "--namespace", "e2e-second"])
        job.cluster.kubectl("delete", "namespace", "e2e-second", "--wait=false")

    assert attempts(status) == [(1, None, "First")]
    assert len(job.submissions()) == 1


def test_quota_that_requires_cpu_limits_is_reported(
    cluster: Kubernetes, operator: Images, namespace: str
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cpu"}}
    job = make_small_job("bounded", operator.trainer, {})
    cluster.apply(quota | {"spec": {"hard": {"limits.cpu": "4"}}}, namespace=namespace)
    cluster.apply(job, namespace=namespace)

    status = wait_for_status(
        cluster, namespace, "bounded", reason_of("Reconciling", "QuotaExceeded"), 60
    )

    assert "must specify limits.cpu" in condition(status, "Reconciling")["message"]
    row = cluster.kubectl("get", "rgj", "bounded", "-o", "wide", "-n", namespace).stdout
    assert row.split()[-1] == "QuotaExceeded"


@pytest.mark.row("B34")
def test_job_on_drained_node_reports_unschedulable_pods_and_resumes(job: TrainingJob) -> None:
    node = job.node_of("trainer")
    job.wait_until(lambda status: status.get("checkpoint", {}).get("step", 0) >= 4, "checkpoint")
    try:
        job.cluster.kubectl(
            "drain", node, f"--pod-selector=raggrpo.io/job-name={NAME},raggrpo.io/role=trainer",
            "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=200s",
            deadline=230,
        )  # fmt: skip
        status = wait_for_status(
            job.cluster, job.namespace, NAME, reason_of("ClusterReady", "Unschedulable"), 120
        )
        assert condition(status, "Ready")["reason"] == "Unschedulable"
    finally:
        job.cluster.kubectl("uncordon", node)
    status = job.wait_for_steps(1, attempt=2)

    assert status["attempts"][0]["fromStep"] >= 4
    assert status["progress"]["step"] >= 4


def test_wrong_image_fails_once_start_grace_has_passed(job: TrainingJob) -> None:
    status = wait_for_status(job.cluster, job.namespace, "wrong-image", has_ended, 240)

    failed = condition(status, "Failed")
    assert failed["reason"] == "StartFailed"
    assert "raggrpo/absent:1" in failed["message"]
    waited = time_of(failed["lastTransitionTime"]) - time_of(status["startTime"])
    assert START_GRACE <= waited < 2 * START_GRACE


def test_plugin_suspends_and_resumes(job: TrainingJob) -> None:
    newest = job.status()["attempt"]
    edit(job, "suspend")
    job.wait_until(lambda status: status["phase"] == "Suspended", "suspension")
    edit(job, "resume")
    status = job.wait_for_steps(1, attempt=newest + 1)
    assert status["attempts"][1]["cause"] == "Suspended"


def edit(job: TrainingJob, verb: str) -> None:
    done = kubectl_raggrpo(verb, NAME, "-n", job.namespace, kubeconfig=job.cluster.kubeconfig)
    assert done.returncode == 0, done.stderr


def patch_key(cluster: Kubernetes, data: Mapping[str, str | None]) -> None:
    patch = json.dumps({"data": data})
    cluster.kubectl("patch", "secret", KEY, "-n", SYSTEM, "--type=merge", "-p", patch)


def wait_for_reason(job: TrainingJob, reason: str, seconds: float) -> dict[str, Any]:
    predicate = reason_of("Reconciling", reason)
    return wait_for_status(job.cluster, job.namespace, NAME, predicate, seconds)


def other_operator_events(job: TrainingJob) -> list[dict[str, Any]]:
    events = events_about(job.cluster, job.namespace, NAME)
    return [each for each in events if each["reason"] == "OtherOperator"]


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)
