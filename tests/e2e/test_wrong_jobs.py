"""Invalid jobs report all violations before a Ray cluster is created."""

from typing import Any

import pytest

from raggrpo_api.trainer.preflight import CheckId
from tools.kind import kind_cluster
from tools.kind.images import Images
from tools.kind.jobs import condition, has_ended, make_small_job, wait_for_status
from tools.kind.kubernetes import Kubernetes
from tools.kind.training_job import MOUNT

pytestmark = pytest.mark.timeout(1200)  # the first test waits for cluster and images

SECONDS = 180
ROWS = 64
"""Number of seeded prompts."""

WRONG: dict[str, dict[str, Any]] = {
    "inputs": {
        "spec.model.path": f"{MOUNT}/no-model",
        "spec.data.trainFiles": [f"{MOUNT}/questions.jsonl", f"{MOUNT}/no-prompts.jsonl"],
        "spec.retrieval": {
            "mode": "Prompt",
            "maxPassageTokens": 4,
            "endpoints": [{"name": "kb", "topK": 1, "url": "http://127.0.0.1:9/retrieve"}],
        },
    },
    "fit": {
        "spec.resources": {"device": "GPU", "gpusPerNode": 1, "gpuMemoryGib": 2, "cpu": "100m"}
    },
    # Violates a rule only together with the preset's values, which the API server does not know.
    "spec": {
        "spec.data": {"trainFiles": [f"{MOUNT}/train.jsonl"]},
        "spec.training.tokensPerMicroBatch": 16,
        "spec.resources": {"device": "CPU", "nodes": 8, "ranks": 64},
    },
}


@pytest.fixture(scope="module")
def statuses(cluster: Kubernetes, operator: Images, shared: str) -> dict[str, dict[str, Any]]:
    """Final statuses of the invalid jobs, which run in parallel."""
    jobs = [make_small_job(f"wrong-{name}", operator.trainer, WRONG[name]) for name in WRONG]
    cluster.apply(*jobs, namespace=shared)
    return {
        name: wait_for_status(cluster, shared, f"wrong-{name}", has_ended, SECONDS)
        for name in WRONG
    }


CHECKS_OF_OTHER_JOBS = {CheckId.START_CHECKPOINT, CheckId.LORA_TARGETS, CheckId.AGENT_READY}
"""Checks of fields that these jobs do not have."""


def checks(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    results = status["preflight"]["checks"]
    return {each["id"]: (each["state"], each.get("evidence", "")) for each in results}


@pytest.mark.row("A12")
def test_invalid_inputs_fail_corresponding_preflight_checks(
    statuses: dict[str, dict[str, Any]],
) -> None:
    results = checks(statuses["inputs"])
    failed = {name for name, (state, _) in results.items() if state == "Failed"}
    assert set(results) == {str(each) for each in CheckId} - CHECKS_OF_OTHER_JOBS
    assert failed == {
        "Paths", "ModelReadable", "DataReadable", "DataColumns", "RetrievalReachable",
    }  # fmt: skip
    assert f"{MOUNT}/no-model" in results["ModelReadable"][1]
    assert f"{MOUNT}/no-prompts.jsonl" in results["DataReadable"][1]
    assert "data.columns.prompt to one of answer, question" in results["DataColumns"][1]
    assert "endpoint kb (http://127.0.0.1:9/retrieve)" in results["RetrievalReachable"][1]


@pytest.mark.parametrize(("name", "cause"), [("inputs", "DataError"), ("fit", "PreflightFailed")])
def test_failed_preflight_fails_job(
    name: str, cause: str, statuses: dict[str, dict[str, Any]]
) -> None:
    status = statuses[name]
    passed, failed = condition(status, "PreflightPassed"), condition(status, "Failed")
    assert (status["phase"], passed["status"]) == ("Failed", "False")
    assert (failed["reason"], failed["message"]) == (cause, passed["message"])


def test_memory_rules_and_sizing_use_preflight_facts(statuses: dict[str, dict[str, Any]]) -> None:
    status = statuses["fit"]

    state, evidence = checks(status)["RulesOnFacts"]
    assert state == "Failed"
    assert "spec.rollout.gpuMemoryUtilization" in evidence
    facts = status["preflight"]["facts"]
    assert facts["rows"] == ROWS
    terms = {(each["resource"], each["name"]): each for each in status["sizing"]["terms"]}
    assert f"{ROWS} rows" in terms["memory", "dataset"]["reason"]
    held = (terms["gpu", name]["bytes"] for name in ("weights", "gradients", "optimizer"))
    assert sum(held) == 16 * facts["parameters"]


def test_contradictory_spec_reports_all_violations(statuses: dict[str, dict[str, Any]]) -> None:
    status = statuses["spec"]

    accepted = condition(status, "Accepted")
    assert (status["phase"], accepted["status"]) == ("Invalid", "False")
    assert "spec.training.tokensPerMicroBatch" in accepted["message"]
    assert "spec.training.miniBatchPrompts" in accepted["message"]
    assert "preflight" not in status


@pytest.mark.usefixtures("statuses")
def test_invalid_jobs_do_not_create_ray_clusters(cluster: Kubernetes, shared: str) -> None:
    created = [
        (event["objectRef"]["resource"], event["objectRef"].get("name", ""))
        for event in kind_cluster.audit_events()
        if event["verb"] == "create" and event.get("objectRef", {}).get("namespace") == shared
    ]

    assert [each for each in created if each[0] == "pods" and "wrong-fit-preflight-" in each[1]]
    assert [each for each in created if each[0] == "rayclusters" and "wrong-" in each[1]] == []
    of_them = f"raggrpo.io/job-name in ({','.join(f'wrong-{name}' for name in WRONG)})"
    cluster.kubectl("wait", "pods", "-l", of_them, "-n", shared, "--for=delete", "--timeout=60s")
