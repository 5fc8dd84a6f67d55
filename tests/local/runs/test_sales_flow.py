"""The sales flow in one real run: actor fields, two RagChat services, RagScore and Format."""

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from starlette.responses import JSONResponse, Response

from local.drills.drill import Outcome, Run
from raggrpo_api.names import ENV_PROGRESS_PORT
from raggrpo_api.trainer.history import read_history
from raggrpo_trainer.retrieval.client import WARM_UP_TEXT
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import data_of, make_manifest
from support.builders.trainer.word_model import write_word_model
from support.servers.faulty_server import FaultyServer, Received, serving

STEPS, PROMPTS, N = 3, 8, 4
SECRET = "Bearer only-the-services-see-this"
QUERIES = {"rates": 0.75, "terms": 0.25, "weather": 0.0, "broken": None}
"""Queries of an actor and their RagScore (shares of 0.6 + 0.2). `broken` is answered with 500."""
REFERENCE = [
    {"id": "rates", "text": "4 % a year", "score": 0.6},
    {"id": "terms", "text": "five years", "score": 0.2},
]
FIELDS = ("user_profile", "rewritten_query", "history_summary")


@dataclass(frozen=True)
class SalesRun:
    """Files of a finished run and requests received by its services."""

    outcome: Outcome
    folder: Path
    actor: FaultyServer
    reference: FaultyServer
    outputs: dict[str, list[str]]
    """Outputs of the actor by sample, in order of steps."""
    rewards: dict[str, list[float]]
    log: str
    metrics_page: str
    """Newest metrics page observed during the run."""

    def request_bodies(self, server: FaultyServer) -> list[dict[str, Any]]:
        """Return the bodies of the calls made for samples.

        The first call comes from preflight, the next ones from the warm-up.
        """
        return [r.body for r in server.requests[1:] if r.body["context"] != WARM_UP_TEXT]


def write_snippet_model(folder: Path) -> None:
    """Write a model whose tokens are whole fields: untrained, it writes all three half the time."""
    values = {
        "user_profile": ["buyer", "student", "owner", "seller"],
        "rewritten_query": list(QUERIES),
        "history_summary": ["asks", "calls", "waits", "doubts"],
    }
    snippets = [f"<{name}>{v}</{name}>" for name, each in values.items() for v in each]
    write_word_model(folder, ["write", *(f"case{i}" for i in range(PROMPTS)), *snippets])


def make_sales_job(folder: Path, actor: str, reference: str) -> Path:
    write_snippet_model(folder / "sales-model")
    rows = [{"prompt": f"write case{i}", "context": f"dialogue {i}"} for i in range(PROMPTS)]
    write_rows(folder / "sales.jsonl", rows)
    common = {
        "protocol": "RagChat",
        "scoreThreshold": 0.5,
        "headers": [{"name": "Authorization", "secretKeyRef": {"name": "rag", "key": "token"}}],
        "extraBody": {"tenant_id": "acme"},
    }
    job = make_manifest(
        "sales-flow",
        {
            "model": {"path": str(folder / "sales-model")},
            "data": data_of(folder / "sales.jsonl", batch=PROMPTS, prompt=16, response=8),
            "rollout": {"n": N, "temperature": 1.0},
            "training": {"totalSteps": STEPS, "learningRate": 1e-4, "precision": "FP32"},
            "retrieval": {
                "mode": "Reward",
                "actorOutput": {"format": "Tags"},
                "maxFailureRatio": 0.5,
                "endpoints": [
                    {"name": "actor-8b", "role": "Actor", "url": actor, "cache": False, **common},
                    {"name": "reference-32b", "role": "Reference", "url": reference, **common},
                ],
            },
            "reward": {"functions": [{"name": "RagScore"}, {"name": "Format", "weight": 0.1}]},
            "checkpoint": {"path": str(folder / "checkpoints")},
            "monitoring": {
                "logLevel": "Debug",
                "debug": {"modelOutput": True, "scoring": True},
            },
            "resources": {"device": "CPU"},
        },
    )
    path = folder / "sales-flow.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


async def answer_query(received: Received) -> Response:
    query = received.body["rewritten_query"]
    if query == "broken":
        return JSONResponse({"error": "out of luck"}, 500)
    return JSONResponse({"results": [{"id": query, "text": query, "score": 0.9}]})


async def answer_all(_: Received) -> Response:
    return JSONResponse({"results": REFERENCE})


async def _scrape(run: Run, pages: list[str]) -> None:
    """Append the metrics page to `pages` every time it can be read."""
    port, token = "", ""
    async with httpx.AsyncClient(trust_env=False) as http:
        while True:
            await asyncio.sleep(0.2)
            if not port:
                port, token = await asyncio.to_thread(_progress_server, run)
            with suppress(httpx.HTTPError):
                headers = {"Authorization": f"Bearer {token}"}
                answer = await http.get(f"http://127.0.0.1:{port or 0}/metrics", headers=headers)
                pages += [answer.text] if answer.is_success else []


def _progress_server(run: Run) -> tuple[str, str]:
    """Return port and token of the progress server, or empty texts before it starts."""
    for process in run.processes():
        with suppress(psutil.Error):
            env = process.environ()
            if port := env.get(ENV_PROGRESS_PORT):
                return port, env["RAY_AUTH_TOKEN"]
    return "", ""


async def _one_run(folder: Path) -> SalesRun:
    async with serving(answer_query) as actor, serving(answer_all) as reference:
        run = Run(folder)
        run.job = make_sales_job(folder, actor.url, reference.url)
        process = run.start()
        pages: list[str] = []
        scraping = asyncio.create_task(_scrape(run, pages))
        outcome = await asyncio.to_thread(run.finish, process)
        scraping.cancel()
    log = (folder / "checkpoints" / "logs" / "attempts" / "1" / "driver.log").read_text()
    outputs: dict[str, list[str]] = {}
    for sample, text in re.findall(r"sample (\d+/\d+): output '(.*)'", log):
        outputs.setdefault(sample, []).append(text)
    rewards: dict[str, list[float]] = {}
    for sample, reward in re.findall(r"sample (\d+/\d+): reward (\S+)", log):
        rewards.setdefault(sample, []).append(float(reward))
    return SalesRun(outcome, folder, actor, reference, outputs, rewards, log, pages[-1])


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> SalesRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGGRPO_SECRET_RAG_TOKEN", SECRET)
        return asyncio.run(_one_run(tmp_path_factory.mktemp("sales") / "run"))


def query_of(output: str) -> str | None:
    """Return the actor's query if all three fields exist; the first of each counts."""
    fields = [re.search(rf"<{name}>(\w+)</{name}>", output) for name in FIELDS]
    return fields[1][1] if all(fields) and fields[1] else None


def reward_of(output: str) -> float | None:
    """Return the hand-computed reward of a sample, or None if its call fails."""
    query = query_of(output)
    if query is None:
        return 0.0
    score = QUERIES[query]
    return None if score is None else score + 0.1


@pytest.mark.row("B32")
@pytest.mark.timeout(600)
def test_sales_flow_succeeds_and_exits_cleanly(sales: SalesRun) -> None:
    assert sales.outcome.summary["phase"] == "Succeeded"
    assert sales.outcome.summary["step"] == STEPS
    assert sales.outcome.causes == []
    assert sales.outcome.left_over == []


@pytest.mark.timeout(600)
def test_sales_flow_samples_cover_all_output_kinds(sales: SalesRun) -> None:
    written = [query_of(text) for texts in sales.outputs.values() for text in texts]
    assert set(written) == {None, *QUERIES}
    assert len(written) >= STEPS * PROMPTS * N  # plus completions of the self-check


@pytest.mark.row("A11")
@pytest.mark.timeout(600)
def test_rewards_match_hand_computed_values(sales: SalesRun) -> None:
    for sample, outputs in sales.outputs.items():
        expected = [r for text in outputs if (r := reward_of(text)) is not None]
        assert sorted(sales.rewards.get(sample, [])) == pytest.approx(sorted(expected)), sample


@pytest.mark.row("A13")
@pytest.mark.timeout(600)
def test_unparsable_output_skips_retrieval_and_failed_call_drops_one_sample(
    sales: SalesRun,
) -> None:
    written = [query_of(text) for texts in sales.outputs.values() for text in texts]
    bodies = sales.request_bodies(sales.actor)

    for query, score in QUERIES.items():
        calls = sum(body["rewritten_query"] == query for body in bodies)
        num_calls = 1 if score is not None else 3  # a 500 is retried twice
        assert calls == num_calls * written.count(query), query
    steps = read_history(sales.folder / "checkpoints" / "logs")
    assert [step["step"] for step in steps] == [1, 2, 3]
    lost = written.count("broken")
    assert lost > 0
    assert (
        lost - 4 <= sum(step["num_failed"] for step in steps) <= lost
    )  # the self-check makes 4 calls


@pytest.mark.row("A29")
@pytest.mark.timeout(600)
def test_endpoint_calls_appear_in_history_status_report_and_metrics(sales: SalesRun) -> None:
    written = [query_of(text) for texts in sales.outputs.values() for text in texts]
    failed = {"actor-8b": {"HttpStatus": written.count("broken")}, "reference-32b": {}}
    calls_by_endpoint = {
        "actor-8b": sales.request_bodies(sales.actor),
        "reference-32b": sales.request_bodies(sales.reference),
    }
    status = json.loads((sales.folder / "job" / "state.json").read_text())["status"]
    shown = {each["name"]: float(each["value"]) for each in status["progress"]["metrics"]}
    report = (sales.folder / "job" / "report.html").read_text()

    newest = read_history(sales.folder / "checkpoints" / "logs")[-1]["retrieval"]

    for name, failures in failed.items():
        answered = newest[name]["answered"]
        requests = answered + newest[name]["retries"] + sum(failures.values())
        assert requests == len(calls_by_endpoint[name]) + 2  # from the warm-up
        assert newest[name]["failures"] == failures
        assert shown[f"retrieval/{name}/failures"] == sum(failures.values())
        assert shown[f"retrieval/{name}/p95"] == pytest.approx(newest[name]["p95"], rel=1e-4)
        counts = ", ".join(f"{cause} {count}" for cause, count in failures.items()) or "none"
        assert f'<td>{name}</td><td class="n">{answered}</td><td>{counts}</td>' in report
        series = f'raggrpo_retrieval_calls_total{{endpoint="{name}",job="sales-flow",outcome='
        assert re.search(rf'^{re.escape(series)}"Answered"}} [1-9]', sales.metrics_page, re.M)


@pytest.mark.row("A11")
@pytest.mark.timeout(600)
def test_log_level_applies_to_driver_rank_and_engine(sales: SalesRun) -> None:
    for process in (
        r"INFO raggrpo_trainer\.progress\.reporter: exported the model of step 3 to",
        r"DEBUG raggrpo_trainer\.ranks\.rank_actor: rank 0 trained step 3",
        r"DEBUG raggrpo_trainer\.engines\.engine_actor: loaded the weights of step 3",
        r"INFO .*vllm",
    ):
        assert re.search(process, sales.log), process


@pytest.mark.row("A14")
@pytest.mark.timeout(600)
def test_requests_contain_required_fields_extra_body_and_headers(sales: SalesRun) -> None:
    common = {"score_threshold": 0.5, "top_k": 3, "tenant_id": "acme"}
    contexts = {f"dialogue {i}" for i in range(PROMPTS)}
    for body in sales.request_bodies(sales.actor):
        assert {name: body[name] for name in common} == common
        assert set(body) == {"context", *FIELDS, *common}
        assert body["context"] in contexts
        assert all(body[name] for name in FIELDS)
    for body in sales.request_bodies(sales.reference):
        assert body == {"context": body["context"], **common}
    assert {body["context"] for body in sales.request_bodies(sales.reference)} <= contexts
    received = [*sales.actor.requests, *sales.reference.requests]
    assert {r.headers["authorization"] for r in received} == {SECRET}


@pytest.mark.row("C15")
@pytest.mark.timeout(600)
def test_secret_header_is_not_written_to_disk(sales: SalesRun) -> None:
    files = [path for path in sales.folder.rglob("*") if path.is_file()]
    assert any(path.name == "driver.log" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
