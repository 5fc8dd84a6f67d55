"""The CRD on a real API server: output of kubectl, and fields that cannot change."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.builders.operator.jobs import REMOVED, SAMPLES, make_raw_job
from tools.kind.api_server import ApiServer

CRD = "raggrpojobs.raggrpo.io"


def create(server: ApiServer, namespace: str, changes: Mapping[str, Any] | None = None) -> None:
    raw = make_raw_job({"metadata": {"name": "small"}, **(changes or {})})
    server.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(raw))


def edited(server: ApiServer, namespace: str, changes: Mapping[str, Any]) -> str:
    """Apply the small job with changes; return the error, or "" if it was accepted."""
    raw = make_raw_job({"metadata": {"name": "small"}, **changes})
    ended = server.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(raw), check=False
    )  # fmt: skip
    return ended.stderr


def test_crd_is_established_and_structural(api_server: ApiServer) -> None:
    conditions = {
        condition["type"]: condition["status"]
        for condition in api_server.read("crd", CRD)["status"]["conditions"]
    }

    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_kubectl_explain_shows_descriptions(api_server: ApiServer) -> None:
    output = " ".join(api_server.kubectl("explain", "rgj.spec.rollout.n").stdout.split())
    assert "FIELD: n <integer>" in output
    assert "Completions per prompt" in output


def test_kubectl_explain_shows_enum_values(api_server: ApiServer) -> None:
    output = " ".join(api_server.kubectl("explain", "rgj.spec", "--recursive").stdout.split())
    assert "enum: Fast, MaxPerformance, MemoryLimited, Debug" in output
    assert "maxPromptLength <integer>" in output


@pytest.mark.parametrize(
    ("field", "unit"),
    [
        ("data.maxPromptLength", "Maximum tokens per prompt"),
        ("recovery.deadlines.preflightSeconds", "Default: 900 seconds."),
        ("resources.gpuMemoryGib", "GiB"),
    ],
)
def test_kubectl_explain_shows_units(field: str, unit: str, api_server: ApiServer) -> None:
    output = api_server.kubectl("explain", f"rgj.spec.{field}").stdout
    assert unit in " ".join(output.partition("DESCRIPTION:")[2].split())


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_jobs_are_accepted_by_api_server(
    path: Path, api_server: ApiServer, namespace: str
) -> None:
    applied = api_server.kubectl(
        "apply", "--dry-run=server", "-n", namespace, "-f", str(path), "-o", "json"
    )
    assert json.loads(applied.stdout)["kind"] == "RagGrpoJob"
    assert "Warning" not in applied.stderr


RUNNING = {
    "preset": "Fast",
    "phase": "Running",
    "attempt": 2,
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "Training", "lastTransitionTime": "now"}
    ],
    "progress": {
        "step": 120,
        "totalSteps": 400,
        "stepOfTotal": "120/400",
        "progressPercentage": 30,
        "estimatedRemainingSeconds": 4100,
        "secondsPerStep": 14.6,
        "stage": "Training",
        "metrics": [
            {"name": "reward_mean", "value": "0.61"},
            {"name": "tokens_per_second", "value": "519"},
        ],
    },
    "checkpoint": {"step": 100, "path": "/mnt/runs/checkpoints"},
    "restarts": {"total": 2},
    "sizing": {"gpus": 8},
    "cluster": {"name": "small-c1", "number": 1},
    "warnings": [{"path": "spec.x", "reason": "Odd", "message": "odd"}],
    "warningCount": 1,
}


@pytest.mark.row("A9", "B15")
def test_printer_columns_show_running_job(api_server: ApiServer, namespace: str) -> None:
    create(api_server, namespace)  # without a preset
    api_server.write_status("rgj", "small", RUNNING, namespace)

    header, row = api_server.kubectl("get", "rgj", "-n", namespace).stdout.splitlines()
    wide_header, wide = api_server.kubectl(
        "get", "rgj", "-n", namespace, "-o", "wide"
    ).stdout.splitlines()

    assert header.split() == [
        "NAME", "PHASE", "STEP", "%", "REWARD", "CKPT", "RESTARTS", "PRESET", "GPUS", "AGE",
    ]  # fmt: skip
    assert row.split()[:-1] == [
        "small", "Running", "120/400", "30", "0.61", "100", "2", "Fast", "8",
    ]  # fmt: skip
    assert wide_header.split()[-8:] == [
        "ETA", "S/STEP", "TOKENS/S", "STAGE", "LOST", "WARNINGS", "CLUSTER", "REASON",
    ]  # fmt: skip
    assert wide.split()[-7:] == ["4100", "14.6", "519", "Training", "1", "small-c1", "Training"]


def test_printer_columns_show_new_job(api_server: ApiServer, namespace: str) -> None:
    create(api_server, namespace)
    assert "small" in api_server.kubectl("get", "rgj", "-n", namespace).stdout
    assert "small" in api_server.kubectl("get", "ml", "-n", namespace).stdout


def test_field_selectors_match_phase_and_suspend(api_server: ApiServer, namespace: str) -> None:
    for name, suspend in (("small", False), ("other", True)):
        raw = make_raw_job({"metadata": {"name": name}, "spec.suspend": suspend})
        api_server.apply(raw, namespace=namespace)
    api_server.write_status("rgj", "small", RUNNING, namespace)

    def selected(selector: str) -> str:
        arguments = ("get", "rgj", "-n", namespace, "-o", "name", "--field-selector", selector)
        return api_server.kubectl(*arguments).stdout.strip()

    assert selected("status.phase=Running") == "raggrpojob.raggrpo.io/small"
    assert selected("spec.suspend=true") == "raggrpojob.raggrpo.io/other"


@pytest.mark.row("B15")
def test_kubectl_wait_returns_on_completion(api_server: ApiServer, namespace: str) -> None:
    create(api_server, namespace)
    done = {"type": "Complete", "status": "True", "reason": "TargetReached"}
    api_server.write_status("rgj", "small", {"conditions": [done]}, namespace)

    api_server.kubectl(
        "wait", "--for=condition=Complete", "rgj/small", "-n", namespace, "--timeout=20s"
    )


def test_status_is_written_only_through_subresource(api_server: ApiServer, namespace: str) -> None:
    create(api_server, namespace, {"status": {"phase": "Succeeded"}})
    api_server.write_status("rgj", "small", {"phase": "Running"}, namespace)
    job = api_server.read("rgj", "small", "-n", namespace)
    assert job["status"] == {"phase": "Running"}
    assert job["metadata"]["generation"] == 1


def test_applied_job_does_not_get_finalizer_or_defaults(
    api_server: ApiServer, namespace: str
) -> None:
    create(api_server, namespace)
    job = api_server.read("rgj", "small", "-n", namespace)
    assert "finalizers" not in job["metadata"]
    assert job["spec"] == make_raw_job()["spec"]
    api_server.kubectl("delete", "rgj", "small", "-n", namespace, "--timeout=20s")


FROZEN: Mapping[str, Mapping[str, Any]] = {
    "spec.preset": {"spec.preset": "MemoryLimited"},
    "spec.data.columns": {"spec.data.columns": {"prompt": "question"}},
    "spec.training.seed": {"spec.training.seed": 7},
    "spec.reward.functions": {"spec.reward.functions": [{"name": "F1"}]},
    "spec.retrieval.mode": {
        "spec.retrieval": {"mode": "Search", "endpoints": [{"name": "kb", "url": "http://kb/"}]}
    },
    "spec.checkpoint.path": {"spec.checkpoint.path": "/mnt/runs/elsewhere"},
}
FROZEN_WHILE_RUNNING: Mapping[str, Mapping[str, Any]] = {
    "spec.data.trainBatchSize": {"spec.data.trainBatchSize": 64},
    "spec.algorithm.klCoefficient": {"spec.algorithm.klCoefficient": 0.1},
    "spec.rollout.temperature": {"spec.rollout.temperature": 0.9},
    "spec.training.learningRate": {"spec.training.learningRate": 1e-5},
    "spec.training.learningRateSchedule": {"spec.training.learningRateSchedule": "Cosine"},
    "spec.reward.functions": {"spec.reward.functions": [{"name": "ExactMatch", "weight": 2}]},
}
EXACT_MATCH = {"spec.reward.functions": [{"name": "ExactMatch"}]}
WHILE_RUNNING = {"attempt": 2, "attempts": [{"number": 2}, {"number": 1, "cause": "Suspended"}]}
AFTER_ATTEMPT = {"attempt": 1, "attempts": [{"number": 1, "cause": "Suspended"}]}
JUDGE = {"model": "grader", "prompt": "Grade {completion}"}
JUDGED = {"name": "Judge", "url": "http://judge/v1/chat/completions", "judge": JUDGE}
SEARCHED = {"name": "kb", "url": "http://kb/", "protocol": "Http", "response": {"text": "body"}}


@pytest.mark.parametrize("field", FROZEN)
def test_frozen_field_can_change_only_before_first_attempt(
    field: str, api_server: ApiServer, namespace: str
) -> None:
    create(api_server, namespace)
    api_server.write_status("rgj", "small", {"phase": "Invalid", "attempt": 0}, namespace)
    assert edited(api_server, namespace, FROZEN[field]) == ""
    assert edited(api_server, namespace, {}) == ""
    api_server.write_status("rgj", "small", {"attempt": 1}, namespace)
    refused = edited(api_server, namespace, FROZEN[field])

    assert field in refused
    assert "cannot change after the first attempt" in refused
    assert "create a new job with its own checkpoint.path" in refused


@pytest.mark.parametrize("field", FROZEN_WHILE_RUNNING)
def test_optimization_field_can_change_only_while_no_attempt_runs(
    field: str, api_server: ApiServer, namespace: str
) -> None:
    change = {**EXACT_MATCH, **FROZEN_WHILE_RUNNING[field]}
    create(api_server, namespace, EXACT_MATCH)
    api_server.write_status("rgj", "small", {"phase": "Running"} | WHILE_RUNNING, namespace)
    for attempted in (change, {**change, "spec.suspend": True}):
        refused = edited(api_server, namespace, attempted)
        assert field in refused
        assert "cannot change while the job is running" in refused
        assert "set suspend: true, wait for phase Suspended, then change it" in refused
    api_server.write_status("rgj", "small", {"phase": "Invalid"} | WHILE_RUNNING, namespace)
    assert "cannot change while the job is running" in edited(api_server, namespace, change)
    for phase in ("Suspended", "Succeeded", "Failed", "Invalid"):
        api_server.write_status("rgj", "small", {"phase": phase} | AFTER_ATTEMPT, namespace)
        assert edited(api_server, namespace, change) == ""
        assert edited(api_server, namespace, EXACT_MATCH) == ""
    api_server.write_status("rgj", "small", {"phase": "Restarting"} | AFTER_ATTEMPT, namespace)
    assert "cannot change while the job is running" in edited(api_server, namespace, change)


def test_removing_frozen_field_after_first_attempt_is_rejected(
    api_server: ApiServer, namespace: str
) -> None:
    create(api_server, namespace, {"spec.training.seed": 64, "spec.data.trainBatchSize": 64})
    api_server.write_status("rgj", "small", {"attempt": 1}, namespace)
    removed = {"spec.training.seed": REMOVED, "spec.data.trainBatchSize": REMOVED}
    refused = edited(api_server, namespace, removed)
    assert "spec.training.seed; revert the change" in refused
    assert "spec.data.trainBatchSize; set suspend: true" in refused


def test_changed_frozen_fields_are_all_reported(api_server: ApiServer, namespace: str) -> None:
    def judged(thinks: bool) -> dict[str, Any]:
        extra = {"chat_template_kwargs": {"enable_thinking": thinks}}
        return {"spec.reward.functions": [JUDGED | {"judge": JUDGE | {"extraBody": extra}}]}

    create(api_server, namespace, judged(True))
    api_server.write_status("rgj", "small", {"attempt": 1}, namespace)
    assert edited(api_server, namespace, judged(False)) == ""
    edit = {"spec.training.seed": 7, "spec.data.maxSamples": 500}
    refused = edited(api_server, namespace, judged(True) | edit)
    assert "spec.data.maxSamples; spec.training.seed; revert the change" in refused


@pytest.mark.row("D14")
def test_endpoint_request_is_frozen_after_first_attempt_but_url_may_change(
    api_server: ApiServer, namespace: str
) -> None:
    create(
        api_server,
        namespace,
        {"spec.reward.functions": [JUDGED], "spec.retrieval.endpoints": [SEARCHED]},
    )
    api_server.write_status("rgj", "small", {"attempt": 1}, namespace)

    def to(judged: Mapping[str, Any], searched: Mapping[str, Any]) -> str:
        places = {"spec.reward.functions": [judged], "spec.retrieval.endpoints": [searched]}
        return edited(api_server, namespace, places)

    refused = to(JUDGED | {"judge": JUDGE | {"prompt": "Be strict: {completion}"}}, SEARCHED)
    assert "spec.reward.functions (name, python, signature, judge.model, judge.prompt" in refused
    refused = to(JUDGED, SEARCHED | {"response": {"text": "title"}})
    assert "spec.retrieval.endpoints (name, role, protocol, method, response.items" in refused
    assert "cannot change after the first attempt" in refused
    elsewhere = "http://other/v1/chat/completions"
    headers = [{"name": "Authorization", "secretKeyRef": {"name": "judge", "key": "token"}}]
    moved = JUDGED | {"url": elsewhere, "judge": JUDGE | {"retries": 5, "headers": headers}}
    assert to(moved, SEARCHED | {"url": "http://other/", "timeoutSeconds": 9}) == ""


def test_endpoint_order_is_frozen_after_first_attempt(
    api_server: ApiServer, namespace: str
) -> None:
    other = {"name": "other", "url": "http://other/", "role": "Actor", "protocol": "RagChat"}
    create(api_server, namespace, {"spec.retrieval.endpoints": [SEARCHED, other]})
    api_server.write_status("rgj", "small", {"attempt": 1}, namespace)
    refused = edited(api_server, namespace, {"spec.retrieval.endpoints": [other, SEARCHED]})
    assert "spec.retrieval.endpoints (name, role, protocol" in refused
    assert edited(api_server, namespace, {"spec.retrieval.endpoints": [SEARCHED, other]}) == ""


BY_EPOCHS = {"spec.training.totalSteps": REMOVED, "spec.training.epochs": 2}
FALLS = {"spec.training.learningRateSchedule": "Linear", "spec.training.totalSteps": 100}


@pytest.mark.parametrize(
    ("existing", "edit", "is_rejected"),
    [
        ({}, {"spec.training.totalSteps": 200}, True),
        ({}, {"spec.training.totalSteps": 200, "spec.training.decaySteps": 100}, False),
        ({}, {"spec.training.totalSteps": 200, "spec.training.decaySteps": 200}, True),
        ({"spec.training.decaySteps": 80}, {"spec.training.totalSteps": 200}, False),
        ({"spec.training.decaySteps": 80}, {"spec.training.decaySteps": 90}, True),
        ({"spec.training.decaySteps": 80}, {"spec.training.decaySteps": REMOVED}, True),
        (BY_EPOCHS, {"spec.training.epochs": 3}, True),
        (BY_EPOCHS, {"spec.suspend": True}, False),
    ],
)
def test_edit_that_moves_learning_rate_decay_end_is_rejected(
    existing: Mapping[str, Any],
    edit: Mapping[str, Any],
    is_rejected: bool,
    api_server: ApiServer,
    namespace: str,
) -> None:
    create(api_server, namespace, FALLS | existing)
    api_server.write_status("rgj", "small", {"attempt": 1}, namespace)
    error = edited(api_server, namespace, FALLS | existing | edit)
    assert ("set decaySteps to the old totalSteps" in error) is is_rejected
    assert bool(error) is is_rejected


ALLOWED: Mapping[str, Mapping[str, Any]] = {
    "more steps": {"spec.training.totalSteps": 2000},
    "more restarts": {"spec.recovery.maxRestarts": 50},
    "longer deadlines": {"spec.recovery.deadlines": {"firstStepSeconds": 7200}},
    "suspend": {"spec.suspend": True},
    "less memory": {"spec.training.gradientCheckpointing": True},
    "another image": {"spec.image": "registry.example.com/trainer:2"},
    "more logging": {"spec.monitoring.mode": "Full"},
    "more checkpoints": {"spec.checkpoint.everySteps": 10},
    "moved files": {
        "spec.model.path": "/mnt/runs/moved",
        "spec.data.trainFiles": ["/mnt/runs/moved.jsonl"],
    },
}


def test_unfrozen_fields_may_change_after_first_attempt(
    api_server: ApiServer, namespace: str
) -> None:
    create(api_server, namespace)
    api_server.write_status("rgj", "small", {"attempt": 3}, namespace)
    assert {
        name: edited(api_server, namespace, ALLOWED[name]) for name in ALLOWED
    } == dict.fromkeys(ALLOWED, "")
