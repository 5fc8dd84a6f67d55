from dataclasses import replace
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.history import read_history
from raggrpo_api.trainer.progress import Stage
from raggrpo_operator.reporting.report import write_report
from raggrpo_trainer.driver.loop import train
from raggrpo_trainer.driver.saving import TrainState
from raggrpo_trainer.http.json_service import ONE_TRY
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from support.builders.trainer.reports import Published, make_config
from support.fakes.fake_training_loop import EndingStore, StepDone, make_components
from support.servers.faulty_server import Received, search_r1, serving


async def fail_on_broken(received: Received) -> Response:
    if "broken" in received.body["queries"]:
        return JSONResponse({"error": "out of luck"}, 500)
    return await search_r1()(received)


async def train_one_step(
    folder: Path, url: str, published: Published, *, waits: bool = False
) -> None:
    """Train one step of two prompts; retrieval may fail for the second."""
    config = make_config(
        folder,
        {
            "retrieval.mode": "Prompt",
            "retrieval.endpoints": [{"name": "kb", "url": url, "cache": not waits}],
            "retrieval.maxFailureRatio": 0.5,
            "data.trainBatchSize": 2,
            "training.totalSteps": 1,
        },
    )
    reporter = Reporter(config, 1, publish=published)
    outages = Outages(reporter.report_outages)
    asking = {"outages": outages} if waits else {}
    async with (
        RetrievalClient(config.retrieval, {}, retry=ONE_TRY, **asking) as retrieval,
        Rewards(config.reward, config.retrieval) as rewards,
    ):
        prompts = ["tea", "broken"]
        with (
            make_components(
                config, prompts, reporter, retrieval, rewards, EndingStore()
            ) as components,
            pytest.raises(StepDone),
        ):
            await train(replace(components, outages=outages), TrainState())
    reporter.close()


async def test_retrieval_summary_is_in_history_and_metrics(tmp_path: Path) -> None:
    published = Published()
    log_dir = tmp_path / "logs"
    async with serving(fail_on_broken) as kb:
        await train_one_step(tmp_path, kb.url, published)

    # Self-check: both prompts together, then individually; then the failed one.
    assert [len(request.body["queries"]) for request in kb.requests] == [2, 1, 1, 1]
    page = published.metrics[-1].splitlines()
    calls = 'raggrpo_retrieval_calls_total{endpoint="kb",job="small",outcome='
    assert {f'{calls}"Answered"}} 1.0', f'{calls}"HttpStatus"}} 3.0'} <= set(page)
    [p95] = [float(line.split()[-1]) for line in page if 'quantile="0.95"' in line]
    assert p95 > 0
    shown = {metric.name: float(metric.value) for metric in published.progresses[-1].metrics}
    assert shown["retrieval/kb/p95"] == pytest.approx(p95, rel=1e-4)
    assert shown["retrieval/kb/failures"] == 3
    [record] = read_history(log_dir)
    assert record["retrieval"]["kb"]["failures"] == {"HttpStatus": 3}
    report = write_report(tmp_path, log_dir, JobStatus()).read_text()
    assert "<h2>Retrieval</h2>" in report
    assert '<td>kb</td><td class="n">1</td><td>HttpStatus 3</td>' in report


async def test_outage_is_reported_and_excluded_from_step_time(
    tmp_path: Path,
) -> None:
    published = Published()
    down = range(1, 4)  # after the self-check

    async def respond(received: Received) -> Response:
        if received.number in down:
            return JSONResponse("restarting", 503)
        return await search_r1()(received)

    async with serving(respond) as kb:
        await train_one_step(tmp_path, kb.url, published, waits=True)

    stages = [progress.stage for progress in published.progresses]
    assert stages.count(Stage.WAITING_FOR_ENDPOINT) >= 1
    waited = published.progresses[-1].waited_seconds
    assert waited > 0.4  # a retry interval before each of two probes
    [record] = read_history(tmp_path / "logs")
    assert record["num_failed"] == 0
    assert record["step_seconds"] < waited
