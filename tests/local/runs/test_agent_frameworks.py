"""Agents of three frameworks that call tools, trained by `raggrpo run`."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from raggrpo_api.trainer.history import read_history
from raggrpo_trainer.data.tokenizer import load_tokenizer
from support.agents.register import ENTRIES
from support.builders.operator.local_job import run_job
from support.builders.trainer.tool_model import write_tool_model
from support.processes.interpreters import agents_interpreter

MISMATCH_NATS = 1e-4
STEPS, PROMPTS, SAMPLES, TURNS = 3, 2, 12, 8
CODE = Path(__file__).parents[2] / "support" / "agents"
FRAMEWORKS = [
    "langchain_tools",
    pytest.param("openai_tools", marks=pytest.mark.long),
    pytest.param("llamaindex_tools", marks=pytest.mark.long),
]


def make_job(folder: Path, framework: str) -> dict[str, Any]:
    """Return a job whose log has all samples, because its steps have two prompts."""
    agent = {
        "python": f"{framework}:answer",
        "interpreter": agents_interpreter(),
        "processes": 2,
        "maxTurns": TURNS,
    }
    return {
        "apiVersion": "raggrpo.io/v1alpha1",
        "kind": "RagGrpoJob",
        "metadata": {"name": "frameworks"},
        "spec": {
            "model": {"path": str(folder / "model")},
            "data": {
                "trainFiles": [str(folder / "train.jsonl")],
                "trainBatchSize": PROMPTS,
                "maxPromptLength": 1000,
                "maxResponseLength": 24,
            },
            "rollout": {"n": SAMPLES, "temperature": 1.0, "agent": agent},
            "training": {
                "totalSteps": STEPS,
                "learningRate": 1e-4,
                "precision": "FP32",
                "rowLayout": "SharedPrefix",
            },
            "reward": {
                "functions": [{"name": "Python", "python": "register:length"}],
                "codeFrom": {"path": str(CODE)},
            },
            "checkpoint": {"path": str(folder / "checkpoints"), "everySteps": 1},
            "resources": {"device": "CPU", "ranks": 2},
        },
    }


def trained_tokens(records: Sequence[dict[str, Any]]) -> int:
    """Return the number of sampled tokens of a step in samples whose advantage is not 0."""
    groups = defaultdict(list)
    for record in records:
        groups[record["question"]].append(record)
    return sum(
        sum(call["tokens"] for call in record["calls"])
        for group in groups.values()
        for record in group
        if abs(record["reward"] - fmean(each["reward"] for each in group)) > 1e-9
    )


@pytest.mark.row("F2")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_that_calls_tools_is_trained_on_its_exact_tokens(
    tmp_path: Path, framework: str
) -> None:
    write_tool_model(tmp_path / "model")
    rows = [dict(zip(("prompt", "answer"), each.split(), strict=True)) for each in ENTRIES]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    done = run_job(tmp_path, make_job(tmp_path, framework))

    assert done.returncode == 0, done.stdout + done.stderr
    logs = tmp_path / "checkpoints" / "logs"
    steps = read_history(logs)
    [file] = logs.glob("**/trajectories.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    records = [record for record in lines if record["step"] > 0]
    calls = [call for record in records for call in record["calls"]]
    tokenizer = load_tokenizer(str(tmp_path / "model"))
    retokenized = sum(
        len(tokenizer.encode(call["completion"], add_special_tokens=False)) + 1 != call["tokens"]
        for call in calls
    )
    figures = {
        "trajectories": len(records),
        "turns": sorted({len(record["calls"]) for record in records}),
        "tool calls": sum(bool(call["message"].get("tool_calls")) for call in calls),
        "rows": sum(record["rows"] for record in records),
        "mismatch": max(step["mismatch_max"] for step in steps),
        "turns that tokenizing again would change": retokenized,
    }
    print(framework, json.dumps(figures))
    assert 0.0 < figures["mismatch"] <= MISMATCH_NATS
    assert figures["trajectories"] == STEPS * PROMPTS * SAMPLES
    assert {1, TURNS} <= set(figures["turns"]) <= set(range(1, TURNS + 1))
    assert figures["tool calls"] > len(records)
    assert {record["failure"][:16] for record in records} <= {"", "agent: MaxTurns:"}
    for step in steps:
        of_step = [record for record in records if record["step"] == step["step"]]
        assert step["num_sampled_tokens"] == sum(
            call["tokens"] for record in of_step for call in record["calls"]
        )
        assert step["num_trained_tokens"] == trained_tokens(of_step)
    assert retokenized > len(calls) / 4
