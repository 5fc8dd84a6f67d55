"""`kubectl raggrpo suspend|resume|retry|top`, and the formats of `status`."""

import json
import subprocess
from typing import Any

import pytest
import yaml

from support.builders.operator.jobs import make_raw_job
from support.kubernetes.kubectl_plugin import kubectl_raggrpo
from tools.kind.api_server import ApiServer

FAILED = {"type": "Failed", "status": "True", "reason": "StartFailed", "message": "no image"}
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "progress": {
        "stage": "Training",
        "secondsPerStep": 14.6,
        "metrics": [
            {"name": "tokens_per_second", "value": "812"},
            {"name": "rank_memory_bytes", "value": "3.22123e+09"},
        ],
    },
    "sizing": {"gpus": 8, "cpu": "34", "memory": "412Gi"},
}


@pytest.fixture
def job(api_server: ApiServer, namespace: str) -> str:
    raw = make_raw_job({"spec.resources": {"device": "CPU"}})
    api_server.apply({**raw, "metadata": {"name": "small"}}, namespace=namespace)
    return namespace


def run(server: ApiServer, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return kubectl_raggrpo(*arguments, kubeconfig=server.kubeconfig)


@pytest.mark.row("B35")
def test_suspend_and_resume_edit_the_spec(api_server: ApiServer, job: str) -> None:
    refused = run(api_server, "resume", "small", "-n", job)
    assert "job small is not suspended" in refused.stderr
    assert refused.returncode == 2

    assert run(api_server, "suspend", "small", "-n", job).stdout == "job small is being suspended\n"
    assert api_server.read("rgj", "small", "-n", job)["spec"]["suspend"] is True

    assert run(api_server, "resume", "small", "-n", job).stdout == "job small resumes\n"
    assert api_server.read("rgj", "small", "-n", job)["spec"]["suspend"] is False


def test_retry_sets_annotation_of_failed_job_only(api_server: ApiServer, job: str) -> None:
    refused = run(api_server, "retry", "small", "-n", job)
    assert "job small has not failed" in refused.stderr

    condition = FAILED | {"lastTransitionTime": "2026-11-21T12:00:00Z"}
    api_server.write_status("rgj", "small", {"phase": "Failed", "conditions": [condition]}, job)
    done = run(api_server, "retry", "small", "-n", job)
    assert done.stdout == "job small is being retried\n"
    annotations = api_server.read("rgj", "small", "-n", job)["metadata"]["annotations"]
    assert annotations["raggrpo.io/retry"]
    refused = run(api_server, "suspend", "small", "-n", job)
    assert "it has no pods to suspend" in refused.stderr


def test_retry_repeats_failed_push_of_complete_job(api_server: ApiServer, job: str) -> None:
    pushed = {"type": "ResultPushed", "status": "False", "reason": "TokenMissing"}
    pushed |= {"lastTransitionTime": "2026-11-21T12:00:00Z", "message": ""}
    api_server.write_status("rgj", "small", {"phase": "Succeeded", "conditions": [pushed]}, job)
    done = run(api_server, "retry", "small", "-n", job)
    assert done.stdout == "job small is being retried\n"


def test_top_shows_resources_and_throughput_of_running_jobs(
    api_server: ApiServer, job: str
) -> None:
    api_server.write_status("rgj", "small", RUNNING, job)

    heading, row = run(api_server, "top", "-n", job).stdout.splitlines()

    cells = ["small", "Training", "8", "34", "412Gi", "3.0", "GiB", "14.6", "812", "-"]
    assert heading.split()[4:] == ["MEMORY", "RANK-MEM", "S/STEP", "TOKENS/S", "TFLOPS"]
    assert row.split() == cells
    api_server.write_status("rgj", "small", {"phase": "Succeeded"}, job)
    assert run(api_server, "top", "-n", job).stdout == "no jobs with pods\n"


def test_status_of_all_namespaces_has_namespace_column(api_server: ApiServer, job: str) -> None:
    heading, *rows = run(api_server, "status", "-A").stdout.splitlines()

    assert heading.split()[:2] == ["NAMESPACE", "NAME"]
    assert [job, "small"] in [row.split()[:2] for row in rows]


def test_status_is_printed_as_json_and_yaml(api_server: ApiServer, job: str) -> None:
    api_server.write_status("rgj", "small", RUNNING, job)

    one = json.loads(run(api_server, "status", "small", "-n", job, "-o", "json").stdout)
    all_jobs = yaml.safe_load(run(api_server, "status", "-n", job, "-o", "yaml").stdout)

    assert (one["kind"], one["metadata"]["name"]) == ("RagGrpoJob", "small")
    assert one["status"]["progress"]["secondsPerStep"] == 14.6
    assert [each["status"]["phase"] for each in all_jobs["items"]] == ["Running"]
