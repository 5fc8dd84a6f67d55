"""A real run with a judge and an HTTP reward service; both have an outage during the run."""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.responses import JSONResponse, PlainTextResponse, Response

from local.drills.drill import Outcome, Run
from raggrpo_api.trainer.history import read_history
from raggrpo_trainer.retrieval.client import WARM_UP_TEXT
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import data_of, make_manifest
from support.builders.trainer.word_model import write_word_model
from support.servers.faulty_server import Received, Respond, serving

STEPS, PROMPTS, N = 3, 8, 4
ANSWERED = 40
"""Calls before the outage of a service: preflight, self-check and first step."""
DOWN_SECONDS = 5.0
WORDS = ["good", "bad", "fair", "poor"]


@dataclass
class Outages:
    """Answers with `respond`, except during one outage."""

    respond: Respond
    first: dict[str, Any] = field(default_factory=dict)
    answered: int = 0
    refused: int = 0
    until: float = field(default=0.0)

    async def __call__(self, received: Received) -> Response:
        if self.answered == ANSWERED and not self.until:
            self.until = time.monotonic() + DOWN_SECONDS
        if time.monotonic() < self.until:
            self.refused += 1
            return PlainTextResponse("starting", 503)
        self.first = self.first or received.body
        self.answered += 1
        return await self.respond(received)


def grade(completion: str) -> int:
    """Return the grade of the judge, 0 to 10."""
    return min(completion.split().count("good"), 10)


async def judge(received: Received) -> Response:
    [message] = received.body["messages"]
    reply = f"The sample says {message['content'][:9]!r}. Grade: {grade(message['content'])}"
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": reply}}]})


async def count_words(received: Received) -> Response:
    return JSONResponse({"score": len(received.body["completion"].split()) / 8})


def make_judged_job(folder: Path, judge_url: str, service_url: str) -> Path:
    write_word_model(folder / "model", ["write", *(f"case{i}" for i in range(PROMPTS)), *WORDS])
    rows = [{"prompt": f"write case{i}"} for i in range(PROMPTS)]
    write_rows(folder / "rows.jsonl", rows)
    judge_spec = {"model": "grader", "prompt": "{completion}", "scorePattern": r"Grade: (\d+)"}
    job = make_manifest(
        "judged",
        {
            "model": {"path": str(folder / "model")},
            "data": data_of(folder / "rows.jsonl", batch=PROMPTS, prompt=16, response=8),
            "rollout": {"n": N, "temperature": 1.0},
            "training": {"totalSteps": STEPS, "learningRate": 1e-4, "precision": "FP32"},
            "reward": {
                "functions": [
                    {"name": "Judge", "url": judge_url, "judge": {**judge_spec, "cache": False}},
                    {"name": "Http", "weight": 0.5, "url": service_url},
                ]
            },
            "checkpoint": {"path": str(folder / "checkpoints")},
            "monitoring": {"debug": {"modelOutput": True, "scoring": True}},
            "resources": {"device": "CPU"},
        },
    )
    path = folder / "judged.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


async def make_judged_run(folder: Path) -> tuple[Outcome, Outages, Outages]:
    judged, counted = Outages(judge), Outages(count_words)
    async with serving(judged) as first, serving(counted) as second:
        run = Run(folder)
        run.job = make_judged_job(folder, first.url, second.url)
        outcome = await asyncio.to_thread(run.finish, run.start())
    return outcome, judged, counted


@pytest.mark.row("D10", "D14")
@pytest.mark.timeout(600)
async def test_job_with_judge_waits_for_reward_services_without_losing_samples(
    tmp_path: Path,
) -> None:
    outcome, judged, counted = await make_judged_run(tmp_path / "run")

    assert outcome.summary["phase"] == "Succeeded"
    assert outcome.causes == []
    assert outcome.left_over == []
    [attempt] = outcome.summary["attempts"]
    assert attempt["waitingSeconds"] >= DOWN_SECONDS / 2
    for service in (judged, counted):
        assert WARM_UP_TEXT in json.dumps(service.first)  # the sample of preflight
        assert service.refused > 0
        assert service.answered >= STEPS * PROMPTS * N
    steps = read_history(tmp_path / "run" / "checkpoints" / "logs")
    assert [(step["step"], step["num_failed"]) for step in steps] == [(1, 0), (2, 0), (3, 0)]

    folder = tmp_path / "run" / "checkpoints" / "logs" / "attempts" / "1"
    [host] = (folder / "ray").iterdir()
    assert {"gcs_server.out", "raylet.out"} <= {file.name for file in host.iterdir()}
    log = (folder / "driver.log").read_text()
    outputs = re.findall(r"sample (\d+/\d+): output '(.*)'", log)
    rewards = re.findall(r"sample (\d+/\d+): reward (\S+)", log)
    expected = [(s, grade(text) / 10 + len(text.split()) / 16) for s, text in outputs]
    logged = [(sample, float(reward)) for sample, reward in rewards]
    assert len(logged) == len(expected) >= STEPS * PROMPTS * N
    assert sorted(r for _, r in logged) == pytest.approx(sorted(r for _, r in expected))
