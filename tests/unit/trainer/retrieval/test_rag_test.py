import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.rag_test import EndpointTest, LoadLevel, RagTest, Variant
from raggrpo_cli.rag_test_output import lines as output_lines
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.retrieval.rag_test import rag_test, saturation
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import make_raw_job, make_trainer_config
from support.servers.faulty_server import Received, always, rag_chat, search_r1, serving

PROMPTS, N = 4, 3


def make_data_file(folder: Path) -> str:
    rows = ({"prompt": f"p{i}", "answer": "a", "context": f"c{i}"} for i in range(PROMPTS))
    return str(write_rows(folder / "train.jsonl", rows))


def make_spec(folder: Path, mode: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    return {
        "data.trainFiles": [make_data_file(folder)],
        "data.trainBatchSize": PROMPTS,
        "rollout.n": N,
        "retrieval": {"mode": mode, "endpoints": list(endpoints)},
    }


def make_config(folder: Path, mode: str, *endpoints: dict[str, Any]) -> TrainerConfig:
    return make_trainer_config(make_spec(folder, mode, *endpoints))


def make_level(in_flight: int, per_second: float) -> LoadLevel:
    seconds = {"p50": None, "p95": None, "p99": None}
    return LoadLevel(in_flight=in_flight, answered=1, per_second=per_second, failures={}, **seconds)


@pytest.mark.row("A15")
@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([10, 20, 40], 0),
        ([10, 20, 21, 20], 2),
        ([10, 9, 8], 1),
        ([10, 10.5, 30, 31], 4),
        ([10], 0),
        ([], 0),
    ],
)
def test_saturation_is_first_load_level_without_ten_percent_gain(
    rates: list[float], expected: int
) -> None:
    assert saturation([make_level(2**i, rate) for i, rate in enumerate(rates)]) == expected


@pytest.mark.row("A15")
async def test_load_doubles_up_to_max_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced `saturation` receives all levels; its rule has a separate test."""

    def total_in_flight(levels: Sequence[LoadLevel]) -> int:
        return sum(each.in_flight for each in levels)

    monkeypatch.setattr("raggrpo_trainer.retrieval.rag_test.saturation", total_in_flight)

    async def slow(received: Received) -> Response:
        await asyncio.sleep(0.02)
        return await search_r1()(received)

    async with serving(slow) as server:
        config = make_config(tmp_path, "Prompt", {"name": "kb", "url": server.url})
        [result] = (await rag_test(config, {}, seconds=0.3, max_in_flight=5)).endpoints

    assert [each.in_flight for each in result.levels] == [1, 2, 4]
    assert result.saturates_at == sum(each.in_flight for each in result.levels)
    assert server.most_in_flight == 4
    for each in result.levels:
        assert each.answered > 0
        assert not each.failures
        assert each.p50 is not None
        assert each.p99 is not None
        assert 0.02 <= each.p50 <= each.p99
    load_calls = sum(each.answered for each in result.levels)
    # Other calls: the first call, two variants, and one call with the step's four questions.
    assert len(server.requests) == load_calls + 4
    assert server.requests[-1].body["queries"] == [f"p{i}" for i in range(PROMPTS)]
    assert result.step is not None
    assert (result.step.questions, result.step.failures) == (PROMPTS, {})


@pytest.mark.row("A15")
async def test_load_test_variants_differ_from_configuration_in_one_setting(tmp_path: Path) -> None:
    async def respond(received: Received) -> Response:
        # Returns passages only without a threshold, like a service with a different score range.
        if received.body["score_threshold"]:
            return JSONResponse({"results": []})
        return rag_chat(received)

    async with serving(respond) as server:
        actor = {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": server.url}
        reference = {**actor, "name": "reference", "role": "Reference"}
        config = make_config(tmp_path, "Reward", actor, reference)
        result = (await rag_test(config, {}, seconds=0.05, max_in_flight=1)).endpoints

    reported = [{v.name: v.passages for v in each.variants} for each in result]
    assert reported[0] == {
        "as configured": 0,
        "topK 1": 0,
        "scoreThreshold 0": 1,
        "context only": 0,
    }
    assert reported[1] == {"as configured": 0, "topK 1": 0, "scoreThreshold 0": 1}
    # A step scores n samples of each prompt; their contexts are equal, the actor's fields differ.
    assert [each.step.questions for each in result if each.step] == [PROMPTS * N] * 2
    actor_bodies = [r.body for r in server.requests if "rewritten_query" in r.body]
    assert len({json.dumps(body) for body in actor_bodies[-PROMPTS * N :]}) == PROMPTS * N
    assert [r.body["context"] for r in server.requests[-PROMPTS:]] == ["c0", "c1", "c2", "c3"]


async def test_failures_are_counted_by_cause_and_stop_load_ramp(tmp_path: Path) -> None:
    async def fail_after_first(received: Received) -> Response:
        is_first = received.number == 0
        return await (search_r1() if is_first else always({"detail": "busy"}, 503))(received)

    async with serving(fail_after_first) as server:
        config = make_config(tmp_path, "Prompt", {"name": "kb", "url": server.url})
        [result] = (await rag_test(config, {}, seconds=0.05, max_in_flight=8)).endpoints

    [level] = result.levels
    assert (level.answered, level.p50, [*level.failures]) == (0, None, ["HttpStatus"])
    assert all("503" in each.failure for each in result.variants)
    assert result.step is not None
    assert sum(result.step.failures.values()) == PROMPTS


async def test_unreachable_service_is_reported_with_cause(tmp_path: Path) -> None:
    reachable = {"name": "kb"}
    unreachable = {"name": "old", "url": "http://nowhere.invalid/retrieve"}
    async with serving(search_r1()) as server:
        config = make_config(tmp_path, "Prompt", {**reachable, "url": server.url}, unreachable)
        result = (await rag_test(config, {}, seconds=0.05, max_in_flight=1)).endpoints

    assert [each.failure.partition(":")[0] for each in result] == ["", "DnsFailure"]
    assert (result[1].levels, result[1].step) == ([], None)


async def test_unset_secret_is_reported_with_variable_name(tmp_path: Path) -> None:
    header = {"name": "Authorization", "secretKeyRef": {"name": "rag", "key": "token"}}
    kb = {"name": "kb", "url": "http://127.0.0.1:9/", "headers": [header]}
    with pytest.raises(TrainerError, match=r"header Authorization: .* is not set"):
        await rag_test(make_config(tmp_path, "Prompt", kb), {}, seconds=1, max_in_flight=1)


async def test_rag_test_command_shows_measurements(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    command = [sys.executable, "-m", "raggrpo_cli.main", "rag-test", str(file)]
    short = ["--mount", f"work={tmp_path}", "--seconds", "0.2", "--most", "2"]

    async def run(*more: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(
            subprocess.run, [*command, *short, *more], capture_output=True, text=True, check=False
        )

    async with serving(search_r1()) as server:
        spec = make_spec(tmp_path, "Prompt", {"name": "kb", "url": server.url})
        spec = {f"spec.{name}": value for name, value in spec.items()}
        file.write_text(json.dumps(make_raw_job(spec | {"spec.resources": {"device": "CPU"}})))
        shown = await run()
        as_json = await run("--json")

    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == f"endpoint kb ({server.url})"
    assert lines[2].startswith("  as configured        1 passages in ")
    assert [line.split()[0] for line in lines[5:7]] == ["1", "2"]
    assert lines[-1].startswith(f"  one step, {PROMPTS} questions: ")
    assert max(map(len, lines)) <= 100
    [result] = RagTest.model_validate_json(as_json.stdout).endpoints
    assert [each.in_flight for each in result.levels] == [1, 2]

    failed = await run()

    assert failed.returncode == 15
    assert "  FAILED ConnectionRefused: " in failed.stdout
    assert failed.stdout.splitlines()[1].endswith(
        "check that the service is running and that its url and headers are correct"
    )


def test_failed_variant_is_no_alarm_unless_job_sends_it() -> None:
    variants = [
        Variant(name="as configured", failure="HttpStatus: 500"),
        Variant(name="context only", failure="HttpStatus: 422 field required"),
    ]
    shown = "\n".join(output_lines(EndpointTest(name="kb", url="u", variants=variants)))

    assert "as configured        FAILED HttpStatus: 500" in shown
    assert (
        "context only         not supported by the service (HttpStatus), not used by the job"
        in shown
    )
    assert shown.count("FAILED") == 1
