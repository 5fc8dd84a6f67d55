import asyncio
import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from raggrpo_api.trainer.progress import Stage
from raggrpo_trainer.driver.hooks import Hooks
from raggrpo_trainer.driver.training_run import TrainingRun, warm_up
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.retrieval.client import RetrievalClient, WarmUp
from support.builders.trainer.reports import make_config
from support.servers.faulty_server import search_r1, serving


def retrieval_changes(url: str) -> dict[str, Any]:
    endpoint = {"name": "wiki", "url": url, "protocol": "SearchR1"}
    return {"retrieval.mode": "Prompt", "retrieval.endpoints": [endpoint]}


@pytest.mark.parametrize("is_enabled", [False, True])
async def test_rag_calls_are_logged_if_enabled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_enabled: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(search_r1()) as server:
        debug = {"monitoring.debug.ragCalls": is_enabled}
        config = make_config(tmp_path, retrieval_changes(server.url) | debug)
        run = TrainingRun(
            config, {}, Hooks(), asyncio.Event(), Mock(), Mock(), Mock(), previous=None
        )
        async with run._services(Outages()) as (_, retrieval):
            await retrieval.retrieve("wiki", "who?", sample="1/2/3")

    assert ("retrieval from endpoint wiki for sample 1/2/3" in caplog.text) is is_enabled


async def test_warm_up_of_endpoints_uses_configured_timeout(tmp_path: Path) -> None:
    changes = retrieval_changes("http://127.0.0.1:1/") | {"retrieval.warmUpTimeoutSeconds": 17}
    retrieval = Mock(spec=RetrievalClient)
    retrieval.warm_up.return_value = WarmUp(1.0, 0.1)

    await warm_up(make_config(tmp_path, changes), retrieval, {"context": "c"})

    retrieval.warm_up.assert_awaited_once_with("wiki", 17, {"context": "c"})


async def test_wait_for_data_is_separate_stage(tmp_path: Path) -> None:
    reporter = Mock()
    run = TrainingRun(
        make_config(tmp_path), {}, Hooks(), asyncio.Event(), Mock(), reporter, Mock(), previous=None
    )
    reading = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(run._inputs(reading))
    await asyncio.sleep(0)
    assert reporter.report_stage.call_args_list == [call(Stage.READING_DATA)]

    reading.set_result("inputs")
    assert await waiting == "inputs"
    assert reporter.report_stage.call_args == call(Stage.LOADING_MODEL)
