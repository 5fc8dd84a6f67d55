"""`kubectl raggrpo` against a real API server: output and errors."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_operator.core.manifests.metadata import child_metadata
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from support.builders.operator.jobs import make_job, make_raw_job
from support.kubernetes.kubectl_plugin import kubectl_raggrpo
from support.processes.waiting import wait_for
from tools.kind.api_server import ApiServer
from tools.kind.kubernetes import kubeconfig_with

OPERATOR = "app.kubernetes.io/name=raggrpo-operator"
IMAGE = "trainer:test"


def make_cluster_job(name: str = "small", **changes: Any) -> dict[str, Any]:
    raw = make_raw_job({"spec.resources": {"device": "CPU"}, **changes})
    return {**raw, "metadata": {"name": name}}


A_STATUS: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "progress": {
        "step": 120,
        "totalSteps": 400,
        "stepOfTotal": "120/400",
        "progressPercentage": 30,
        "secondsPerStep": 14.6,
        "stage": "Training",
        "metrics": [{"name": "reward_mean", "value": "0.61"}],
    },
    "restarts": {"total": 1, "byCause": {"WorkerLost": 1}},
    "attempts": [
        {
            "number": 2,
            "tier": "NewCluster",
            "fromStep": 100,
            "toStep": 120,
            "started": "2026-11-21T12:00:00Z",
        },
        {
            "number": 1,
            "cause": "WorkerLost",
            "message": "trainer pod small-c1-trainer-worker-x on node n1: " + "gone " * 30,
            "fromStep": 0,
            "toStep": 104,
            "lostSteps": 4,
        },
    ],
    "conditions": [
        {
            "type": "Accepted",
            "status": "True",
            "reason": "Valid",
            "message": "every rule holds",
            "lastTransitionTime": "2026-11-21T12:00:00Z",
        }
    ],
    "sizing": {
        "gpus": 0,
        "cpu": "2",
        "memory": "9Gi",
        "shm": "2Gi",
        "pods": [{"role": "trainer", "cpu": "2", "memory": "9Gi", "shm": "2Gi"}],
        "terms": [
            {"resource": "memory", "name": "driver", "bytes": 1 << 30, "reason": "driver and Ray"}
        ],
    },
    "preflight": {"facts": {"parameters": 560_000, "layers": 3, "rows": 8000}},
}


def test_status_lists_phase_step_and_reward(api_server: ApiServer, namespace: str) -> None:
    api_server.apply(make_cluster_job("small"), make_cluster_job("n" * 44), namespace=namespace)
    api_server.write_status("rgj", "small", A_STATUS, namespace)
    shown = kubectl_raggrpo("status", "-n", namespace, kubeconfig=api_server.kubeconfig)

    assert shown.returncode == 0, shown.stderr
    heading, *rows = shown.stdout.splitlines()
    assert heading.split() == ["NAME", "PHASE", "STEP", "%", "REWARD", "RESTARTS", "AGE"]
    cells = {row.split()[0]: row.split()[1:-1] for row in rows}
    assert cells["small"] == ["Running", "120/400", "30", "0.61", "1"]
    assert cells["n" * 44] == ["Pending", "-", "0", "-", "0"]
    assert max(map(len, shown.stdout.splitlines())) <= 100


@pytest.mark.row("A9")
def test_status_shows_cause_and_conditions_and_sizing_on_request(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.apply(make_cluster_job(), namespace=namespace)
    api_server.write_status("rgj", "small", A_STATUS, namespace)

    shown = kubectl_raggrpo("status", "small", "-n", namespace, kubeconfig=api_server.kubeconfig)

    lines = shown.stdout.splitlines()
    assert lines[0] == f"job       {namespace}/small, preset Fast"
    assert lines[1] == "phase     Running"
    assert lines[2].startswith("progress  step 120/400 (30 %), 14.6 s/step, stage Training")
    assert lines[2].endswith("reward 0.61")
    assert "restarts  1: WorkerLost 1" in lines
    assert "attempt   1 (First): WorkerLost, steps 0 to 104, lost 4" in lines
    assert "others    Accepted=True" in lines
    assert not any("GiB" in line for line in lines)
    arguments = ("status", "small", "--sizing", "-n", namespace)
    sized = kubectl_raggrpo(*arguments, kubeconfig=api_server.kubeconfig).stdout
    assert any(line.split()[:3] == ["driver", "1.0", "GiB"] for line in sized.splitlines()), sized
    assert max(map(len, lines)) <= 100


@pytest.mark.row("B4")
def test_plan_of_cluster_job_uses_preflight_facts_and_operator_image(
    api_server: ApiServer, namespace: str
) -> None:
    for other in api_server.read("deployments", "-A", "-l", OPERATOR)["items"]:  # of other tests
        about = other["metadata"]
        gone = '{"metadata": {"labels": {"app.kubernetes.io/name": null}}}'
        place = (about["name"], "-n", about["namespace"])
        api_server.kubectl("patch", "deployment", *place, "--type=merge", "-p", gone)
    api_server.apply(make_cluster_job(), make_operator_deployment(), namespace=namespace)
    api_server.write_status("rgj", "small", A_STATUS, namespace)

    shown = kubectl_raggrpo("plan", "small", "-n", namespace, kubeconfig=api_server.kubeconfig)

    assert shown.returncode == 0, shown.stderr
    assert "Model: 560,000 parameters" in shown.stdout
    assert shown.stdout.splitlines()[-1] == f"Image: {IMAGE} (default of the operator)"

    asked = ("plan", "small", "--manifests", "-n", namespace)
    stream = kubectl_raggrpo(*asked, kubeconfig=api_server.kubeconfig).stdout
    manifests = {each["kind"]: each for each in yaml.safe_load_all(stream)}
    about, pod = manifests["RayCluster"]["metadata"], manifests["Pod"]["spec"]
    assert (about["namespace"], pod["containers"][0]["image"]) == (namespace, IMAGE)
    assert about["ownerReferences"][0]["uid"]


@pytest.mark.row("A17")
def test_plan_of_suspended_job_lists_values_changed_since_last_attempt(
    api_server: ApiServer, namespace: str
) -> None:
    job = make_job({"rollout.n": 5})
    raw = make_cluster_job()
    raw["spec"]["rollout"] = {"n": 3}
    api_server.apply(raw, namespace=namespace)
    metadata = Metadata.model_validate(api_server.read("rgj", "small", "-n", namespace)["metadata"])
    record = make_record(metadata, 1, {})
    record["data"]["config.json"] = trainer_config(job, resolve(job)).record()
    api_server.apply(record, namespace=namespace)
    attempts = [{"number": 1, "cause": "Suspended", "fromStep": 0, "toStep": 7}]
    checkpoint = {"step": 7, "path": "/mnt/runs/checkpoints/step_00000007.e1"}
    status = {"phase": "Suspended", "attempt": 1, "attempts": attempts, "checkpoint": checkpoint}
    api_server.write_status("rgj", "small", status, namespace)

    shown = kubectl_raggrpo("plan", "small", "-n", namespace, kubeconfig=api_server.kubeconfig)

    assert "next attempt, from step 8: rollout.n: 5 → 3" in shown.stdout, shown.stderr


@pytest.mark.row("A16")
def test_diff_compares_attempt_records(api_server: ApiServer, namespace: str) -> None:
    api_server.apply(make_cluster_job(), make_cluster_job("big"), namespace=namespace)
    small, big = (
        Metadata.model_validate(api_server.read("rgj", name, "-n", namespace)["metadata"])
        for name in ("small", "big")
    )
    records = [make_record(small, 1, {"n": 4}), make_record(small, 2, {"n": 8})]
    foreign = make_record(small, 2, {"n": 99}) | {"metadata": make_record(big, 2, {})["metadata"]}
    foreign["metadata"]["labels"][names.LABEL_JOB] = "small"
    api_server.apply(*records, foreign, namespace=namespace)
    api_server.write_status("rgj", "small", A_STATUS, namespace)

    def diff(*of: str) -> Any:
        return kubectl_raggrpo("diff", *of, "-n", namespace, kubeconfig=api_server.kubeconfig)

    assert diff("small").stdout == "small@1 → small@2\nrollout.n: 4 → 8\n"
    assert diff("small@2", "small@1").stdout.endswith("rollout.n: 8 → 4\n")
    record = records[0]["metadata"]["name"]
    api_server.kubectl("delete", "configmap", record, "-n", namespace)
    for wrong, words in {
        "small@1": "small has no attempt 0: its attempts are 1 to 2",
        "small": "the ConfigMap of small@1 (labels ",
        "other": "job other does not exist in namespace",
    }.items():
        refused = diff(wrong)
        assert refused.returncode != 0
        assert words in refused.stderr


def make_record(job: Metadata, attempt: int, rollout: dict[str, int]) -> dict[str, Any]:
    data = {"config.json": json.dumps({"attempt": {"jobName": job.name}, "rollout": rollout})}
    name = names.config_map_name(job.name, job.uid, attempt)
    metadata = child_metadata(job, name, labels={names.LABEL_ATTEMPT: str(attempt)})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_plan_of_file_does_not_need_existing_job_or_extra_permissions(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    user = make_user(api_server, namespace, "planner")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(make_cluster_job()))
    shown = kubectl_raggrpo("plan", "-f", file, "-n", namespace, kubeconfig=user)

    assert shown.returncode == 0, shown.stderr
    assert "Model and data: not read yet" in shown.stdout
    assert "Image: default of the operator, which cannot be read" in shown.stdout


def test_missing_job_is_reported_with_remedy(api_server: ApiServer, namespace: str) -> None:
    for verb in ("status", "logs", "plan"):
        ended = kubectl_raggrpo(verb, "gone", "-n", namespace, kubeconfig=api_server.kubeconfig)
        assert ended.returncode == 2, ended.stderr
        assert f"job gone does not exist in namespace {namespace}" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_logs_error_reports_phase_of_unstarted_job(api_server: ApiServer, namespace: str) -> None:
    api_server.apply(make_cluster_job(), namespace=namespace)
    ended = kubectl_raggrpo("logs", "small", "-n", namespace, kubeconfig=api_server.kubeconfig)
    assert ended.returncode == 1
    assert "attempt 1 of job small has not started, the job is Pending" in ended.stderr


def test_missing_attempt_is_reported_with_existing_attempts(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.apply(make_cluster_job(), namespace=namespace)
    api_server.write_status("rgj", "small", A_STATUS, namespace)
    ended = kubectl_raggrpo(
        "logs", "small", "--attempt", 3, "-n", namespace, kubeconfig=api_server.kubeconfig
    )

    assert ended.returncode == 2
    assert "job small has attempts 1 to 2" in ended.stderr


def test_missing_permission_is_named_in_error(api_server: ApiServer, namespace: str) -> None:
    user = make_user(api_server, namespace, "unprivileged")
    ended = kubectl_raggrpo("status", "-n", namespace, kubeconfig=user)
    assert ended.returncode == 1
    assert 'cannot list resource "raggrpojobs"' in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_reader_pod_that_cannot_start_is_reported_and_deleted(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.apply(make_cluster_job(**{"spec.image": IMAGE}), namespace=namespace)
    api_server.write_status("rgj", "small", A_STATUS, namespace)
    api_server.kubectl("create", "serviceaccount", "default", "-n", namespace, check=False)
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    container = {"name": "reader", "image": IMAGE, "imageID": "", "restartCount": 0, "ready": False}
    status = {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}

    def pods() -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = api_server.read("pods", "-n", namespace)["items"]
        return pods

    def play_kubelet() -> None:
        wait_for(lambda: bool(pods()))
        api_server.write_status("pod", pods()[0]["metadata"]["name"], status, namespace)

    with ThreadPoolExecutor() as pool:
        playing = pool.submit(play_kubelet)
        ended = kubectl_raggrpo("logs", "small", "-n", namespace, kubeconfig=api_server.kubeconfig)
        playing.result()

    assert ended.returncode == 1
    assert "the job's volumes cannot be read: pod small-reader-" in ended.stderr
    assert "ErrImagePull: no such image" in ended.stderr
    assert pods() == []


def test_missing_crd_is_reported_with_remedy(api_server: ApiServer, tmp_path: Path) -> None:
    crd = "customresourcedefinition/raggrpojobs.raggrpo.io"
    kept = api_server.read("crd", "raggrpojobs.raggrpo.io")
    api_server.kubectl("delete", crd)
    try:
        listed = kubectl_raggrpo("status", kubeconfig=api_server.kubeconfig)
        named = kubectl_raggrpo("status", "small", kubeconfig=api_server.kubeconfig)
    finally:
        kept["metadata"] = {"name": kept["metadata"]["name"]}
        del kept["status"]
        api_server.apply(kept)
        api_server.kubectl("wait", crd, "--for=condition=Established", "--timeout=60s")

    for ended in (listed, named):
        assert ended.returncode == 2
        assert "does not serve RagGrpoJob: install the operator" in ended.stderr


def test_unreachable_api_server_and_wrong_token_have_different_errors(
    api_server: ApiServer, tmp_path: Path
) -> None:
    silent, stranger = tmp_path / "silent", tmp_path / "stranger"
    authority = api_server.authority
    silent.write_text(yaml.safe_dump(kubeconfig_with("https://127.0.0.1:9", authority, "t")))
    stranger.write_text(yaml.safe_dump(kubeconfig_with(api_server.url, authority, "wrong")))
    unanswered = kubectl_raggrpo("status", kubeconfig=silent)
    refused = kubectl_raggrpo("status", kubeconfig=stranger)

    assert (unanswered.returncode, refused.returncode) == (1, 1)
    assert "no response from https://127.0.0.1:9" in unanswered.stderr
    assert "HTTP 401" in refused.stderr
    assert len(unanswered.stderr.splitlines()) == len(refused.stderr.splitlines()) == 1


def make_operator_deployment() -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "raggrpo-operator"}
    env = [{"name": "RAGGRPO_TRAINER_IMAGE", "value": IMAGE}]
    container = {"name": "operator", "image": "operator:test", "env": env}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "raggrpo-operator", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def make_user(api_server: ApiServer, namespace: str, name: str) -> Path:
    """Return the kubeconfig of a user without permissions."""
    api_server.kubectl("create", "serviceaccount", name, "-n", namespace)
    return api_server.service_account_kubeconfig(namespace, name)
