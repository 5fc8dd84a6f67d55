from collections.abc import Callable
from pathlib import Path

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.preflight import Facts
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.plan import render_plan
from support.builders.jobs import KNOWN_7B, KNOWN_TINY, SAMPLES, a_job, a_sample

Golden = Callable[[str, str], None]


def plan_of(job: RagGrpoJob, facts: Facts | None = None, width: int = 100) -> str:
    resolved = resolve(job, facts)
    sizing = size(resolved.spec, facts)
    return render_plan(job, resolved, sizing, violations(job, resolved, facts), facts, width)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_plans_of_samples(path: Path, golden: Golden) -> None:
    golden(f"{path.stem}/plan.txt", plan_of(a_sample(path)))


def test_plan_with_known_model(golden: Golden) -> None:
    fast = next(path for path in SAMPLES if path.stem == "fast")
    golden("fast/plan_with_facts.txt", plan_of(a_sample(fast), KNOWN_7B))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("facts", [None, KNOWN_7B, KNOWN_TINY], ids=["unknown", "7b", "tiny"])
@pytest.mark.parametrize("width", [100, 120])
def test_plans_fit_their_width(path: Path, facts: Facts | None, width: int) -> None:
    lines = plan_of(a_sample(path), facts, width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_every_value_stands_beside_its_origin() -> None:
    job = a_job({"rollout": {"n": 5}})
    lines = plan_of(job).splitlines()

    shown = {line.split()[0]: line.split()[1:3] for line in lines if line.startswith("  ")}
    assert shown["rollout.n"] == ["user", "5"]
    assert shown["algorithm.groupSize"] == ["coupled", "5"]
    assert shown["data.trainBatchSize"] == ["preset", "128"]
    assert shown["rollout.topP"] == ["default", "1.0"]
    assert shown["resources.cpu"] == ["sized", "8"]
    assert resolve(job).origins.keys() <= shown.keys()


def test_errors_and_warnings_come_with_their_remedies() -> None:
    text = plan_of(a_job({"rollout": {"n": 1, "topP": 0.5}}))
    assert "Errors (1)\n  spec.rollout.n: a group of one completion" in text
    assert "    → rollout.n: 2 or more" in text
    assert "Warnings (1)\n  spec.rollout.topP" in text


def test_long_values_continue_below_themselves() -> None:
    files = [f"/mnt/runs/part-{number:03}.parquet" for number in range(12)]
    text = plan_of(a_job({"data.trainFiles": files}))
    assert all(name in text for name in files)


def test_literal_secrets_are_hidden() -> None:
    canary = "s3cr3t-canary"
    headers = [{"name": "Authorization", "value": canary}]
    body = {"api_key": canary}
    kb = {"name": "kb", "url": "http://kb:8000/r", "headers": headers, "extraBody": body}
    job = a_job(
        {
            "env": [{"name": "HF_TOKEN", "value": canary}, {"name": "HOME", "value": "/shown"}],
            "retrieval": {"mode": "Prompt", "endpoints": [kb]},
        }
    )

    text = plan_of(job)

    assert canary not in text
    assert "/shown" in text
