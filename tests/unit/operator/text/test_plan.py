import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.preflight import Facts
from raggrpo_api.trainer.progress import CheckpointRef, Segment
from raggrpo_api.trainer.resume import changes, resume_values
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Reason, Violation
from raggrpo_operator.core.text.plan import render_plan
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, SAMPLES, make_job, make_sample

Golden = Callable[[str, str], None]


def plan_of(job: RagGrpoJob, facts: Facts | None = None, width: int = 100) -> str:
    resolved = resolve(job, facts)
    sizing = size(resolved.spec, facts)
    return render_plan(job, resolved, sizing, violations(job, resolved, facts), facts, width)


@pytest.mark.row("A3", "A8", "A20", "B4")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_plans_of_samples_match_golden_files(path: Path, golden: Golden) -> None:
    golden(f"{path.stem}/plan.txt", plan_of(make_sample(path)))


def test_plan_of_known_model_matches_golden_file(golden: Golden) -> None:
    fast = next(path for path in SAMPLES if path.stem == "fast")
    golden("fast/plan_with_facts.txt", plan_of(make_sample(fast), KNOWN_7B))


@pytest.mark.row("F1")
def test_plan_of_known_model_with_adapters_matches_golden_file(golden: Golden) -> None:
    known = {"adapted_layers": 196, "adapter_parameters_per_rank": 2_523_136}
    lora = next(path for path in SAMPLES if path.stem == "lora")
    golden(
        "lora/plan_with_facts.txt", plan_of(make_sample(lora), KNOWN_7B.model_copy(update=known))
    )


@pytest.mark.row("B4")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("facts", [None, KNOWN_7B, KNOWN_TINY], ids=["unknown", "7b", "tiny"])
@pytest.mark.parametrize("width", [100, 120])
def test_plan_lines_fit_requested_width(path: Path, facts: Facts | None, width: int) -> None:
    lines = plan_of(make_sample(path), facts, width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.row("A2")
def test_plan_shows_values_with_origins() -> None:
    job = make_job({"rollout": {"n": 5}})
    lines = plan_of(job).splitlines()

    shown = {line.split()[0]: line.split()[1:3] for line in lines if line.startswith("  ")}
    assert shown["rollout.n"] == ["user", "5"]
    assert shown["algorithm.groupSize"] == ["coupled", "5"]
    assert shown["data.trainBatchSize"] == ["preset", "128"]
    assert shown["rollout.topP"] == ["default", "1.0"]
    assert shown["resources.cpu"] == ["sized", "8"]
    assert resolve(job).origins.keys() <= shown.keys()


def test_plan_shows_remedies_for_errors_and_warnings() -> None:
    text = plan_of(make_job({"rollout": {"n": 1, "topP": 0.5}}))
    assert "Errors (1)\n  spec.rollout.n: the advantage in a group of one completion" in text
    assert "    → set rollout.n: 2 or more" in text
    assert "Warnings (1)\n  spec.rollout.topP" in text


def test_long_list_values_are_shown_completely() -> None:
    files = [f"/mnt/runs/part-{number:03}.parquet" for number in range(12)]
    text = plan_of(make_job({"data.trainFiles": files}))
    assert all(name in text for name in files)


@pytest.mark.parametrize("width", [100, 120])
def test_plan_fills_lines_before_wrapping_long_values(width: int) -> None:
    files = [f"/mnt/runs/held-out-{number}.parquet" for number in range(40)]
    lines = plan_of(make_job({"data.trainFiles": files}), width=width).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("  data.trainFiles "))
    rest = [line for line in lines[first + 1 : first + 40] if line.startswith("   ")]

    column = lines[first].index("[")
    assert len(rest) > 5
    assert {f'"{name}"' for name in files} <= {
        word.strip("[],") for line in [lines[first], *rest] for word in line.split()
    }
    assert {len(line) - len(line.lstrip()) for line in rest} == {column}
    for line, following in pairwise([lines[first], *rest]):
        assert len(line) <= width < len(f"{line} {following.split()[0]}")


@pytest.mark.parametrize("first", ["a", "aa"])
def test_plan_default_width_is_100(first: str) -> None:
    job = make_job()
    resolved = resolve(job)
    violations = [Violation("spec", Reason.OUT_OF_RANGE, f"{first} " + "a " * 200, "less")]
    sizing = size(resolved.spec)

    usual = render_plan(job, resolved, sizing, violations)
    assert usual == render_plan(job, resolved, sizing, violations, width=100)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (
            {"gpusPerNode": 4, "nodes": 2, "placement": "Disaggregated", "rolloutGpus": 2},
            "GPU, Disaggregated: 2 node(s) × 4 GPU(s), 8 trainer rank(s), 2 rollout engine(s)",
        ),
        (
            {"device": "CPU", "nodes": 2, "ranks": 3},
            "CPU, Colocated: 2 node(s) × 3 rank(s), 6 trainer rank(s), 1 rollout engine(s)",
        ),
    ],
)
def test_plan_starts_with_preset_placement_and_facts(
    resources: dict[str, Any], expected: str
) -> None:
    job = make_job({"resources": resources})
    unknown, known = plan_of(job).splitlines(), plan_of(job, KNOWN_TINY).splitlines()

    assert unknown[:2] == known[:2] == ["Job small, preset Fast", expected]
    assert unknown[2] == "Model and data: not read yet (raggrpo check reads them)"
    assert known[2] == (
        "Model: 560,000 parameters, 3 layers × 128, 4 heads, context 2048; data: 8,000 rows"
    )


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        ({}, ["LoRA: rank 32 on 196 layers, 80.7M of 7.6B parameters trained"]),
        ({"rank": 1}, ["LoRA: rank 1 on 196 layers, 2.5M of 7.6B parameters trained"]),
        (None, []),
    ],
)
def test_plan_states_share_of_trained_parameters(
    lora: dict[str, Any] | None, expected: list[str]
) -> None:
    known = {"adapted_layers": 196, "adapter_parameters_per_rank": 2_523_136}
    facts = KNOWN_7B.model_copy(update=known)
    lines = plan_of(make_job({"training.lora": lora}), facts).splitlines()
    assert [line for line in lines if line.startswith("LoRA")] == expected


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        (None, ["Checkpoint: 84.9 GiB"]),
        ({}, ["Checkpoint: 924.0 MiB (84.9 GiB without adapters)"]),
        ({"rank": 1}, ["Checkpoint: 28.9 MiB (84.9 GiB without adapters)"]),
    ],
)
def test_plan_states_size_of_checkpoint(lora: dict[str, Any] | None, expected: list[str]) -> None:
    known = {"adapted_layers": 196, "adapter_parameters_per_rank": 2_523_136}
    facts = KNOWN_7B.model_copy(update=known)
    lines = plan_of(make_job({"training.lora": lora}), facts).splitlines()
    assert [line for line in lines if line.startswith("Checkpoint")] == expected


def test_plan_names_tokens_that_start_prompts() -> None:
    facts = KNOWN_TINY.model_copy(update={"prompt_start": "<bos>"})
    assert plan_of(make_job(), facts).splitlines()[4] == (
        "Prompts start with <bos>, which the tokenizer adds"
    )


def test_unprintable_texts_are_shown_as_json() -> None:
    template = "{passages}\n{prompt}"
    kb = {"name": "kb", "url": "http://kb:8000/r"}
    retrieval = {"mode": "Prompt", "endpoints": [kb], "promptTemplate": template}
    lines = plan_of(make_job({"retrieval": retrieval})).splitlines()
    shown = {line.split()[0]: line.split(maxsplit=2)[2] for line in lines if line[:3] != "   "
             and line.startswith("  ") and len(line.split()) > 2}  # fmt: skip
    assert shown["retrieval.promptTemplate"] == '"{passages}\\n{prompt}"'
    assert shown["image"] == '""'
    assert shown["model.path"] == "/mnt/runs/model"
    assert shown["training.totalSteps"] == "1000"


def test_wrapped_violation_lines_are_indented() -> None:
    lines = plan_of(make_job({"rollout": {"topP": 0.5}})).splitlines()
    [first] = [n for n, line in enumerate(lines) if line.startswith("  spec.rollout.topP: ")]
    violation_lines = lines[first : lines.index("    → set rollout.topP: 1.0")]
    assert len(violation_lines) > 2
    assert all(re.match("    [^ ]", line) for line in violation_lines[1:])


def test_wrapped_remedy_lines_are_indented_further() -> None:
    job = make_job()
    resolved = resolve(job)
    violations = [Violation("spec", Reason.OUT_OF_RANGE, "wrong", "less " * 60)]
    lines = render_plan(job, resolved, size(resolved.spec), violations).splitlines()
    first = lines.index("  spec: wrong") + 1
    assert re.match("    → less", lines[first])
    assert len(lines[first + 1 :]) > 2
    assert all(re.match("      less", line) for line in lines[first + 1 :])


def test_plan_does_not_show_literal_secrets() -> None:
    canary = "s3cr3t-canary"
    headers = [{"name": "Authorization", "value": canary}]
    body = {"api_key": canary}
    kb = {"name": "kb", "url": "http://kb:8000/r", "headers": headers, "extraBody": body}
    job = make_job(
        {
            "env": [{"name": "HF_TOKEN", "value": canary}, {"name": "HOME", "value": "/shown"}],
            "retrieval": {"mode": "Prompt", "endpoints": [kb]},
        }
    )

    text = plan_of(job)

    assert canary not in text
    assert "/shown" in text


def test_plan_shows_segments_and_pending_changes() -> None:
    status = JobStatus(
        segments=[Segment(first_step=7, changes=["rollout.n: 5 → 3"])],
        checkpoint=CheckpointRef(step=12, path="/mnt/runs/checkpoints/step_00000012.e2"),
    )
    job = make_job({"rollout.temperature": 0.5}).model_copy(update={"status": status})
    resolved = resolve(job)
    pending = changes(resume_values(resolve(make_job()).spec), resume_values(resolved.spec))

    text = render_plan(job, resolved, size(resolved.spec), [], pending=pending)

    assert (
        "Segments (values: old → new)\n"
        "  from step 7: rollout.n: 5 → 3\n"
        "  next attempt, from step 13: rollout.temperature: 0.6 → 0.5\n"
    ) in text
    assert "Segments" not in plan_of(make_job())


@pytest.mark.row("E11")
def test_plan_hides_accepted_values_that_look_like_secrets() -> None:
    canary, accepted = "c4n4ryq7Zt2Lk9Xw4Vb8Nc1Rm5", {"notSecret": True}
    kb = {"name": "kb", "url": f"http://kb/{canary}?token={canary}", "extraBody": {"a": canary}}
    header = {"name": "X-Client", "value": canary} | accepted
    changes: dict[str, Any] = {
        "retrieval": {"mode": "Prompt", "endpoints": [kb | accepted | {"headers": [header]}]},
        "reward.functions": [{"name": "Http", "url": f"http://h/hooks/{canary}"} | accepted],
        "env": [{"name": "SESSION_ID", "value": canary[:7]} | accepted],
    }
    job = make_job(changes)

    assert Reason.SECRET_IN_PLAIN_TEXT not in {v.reason for v in violations(job, resolve(job))}
    plan = plan_of(job)
    assert canary[:7] not in plan
    assert "http://h/hooks/(hidden)" in plan
