"""Deadlines apply regardless of the number of jobs, even if rounds are late."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.http_api import open_session
from raggrpo_operator.kube.cluster_objects import JobKey
from support.builders.operator.jobs import KNOWN_TINY
from support.operator.reconciler_environment import (
    KEY,
    NOW,
    ReconcilerEnvironment,
    make_running_status,
)

HANGING_PROGRESS = Progress(
    attempt=1, stage=Stage.TRAINING, step=25, total_steps=100, started_from_step=0,
    seconds_per_step=60.0,
)  # fmt: skip
STALL_SECONDS = 600.0
"""Ten times the usual step duration."""


@asynccontextmanager
async def make_environment(folder: Path, jobs: int) -> AsyncIterator[ReconcilerEnvironment]:
    """Yield a job whose driver hangs, among other running jobs."""

    async def answer(request: web.Request) -> web.Response:
        progress = HANGING_PROGRESS.model_dump(mode="json", by_alias=True)
        is_progress = request.path == "/progress"
        return web.Response(text=json.dumps(progress if is_progress else {"status": "RUNNING"}))

    app = web.Application()
    app.add_routes([web.route("*", "/{anything:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with open_session() as session:
        environment = ReconcilerEnvironment(folder, session, make_running_status(KNOWN_TINY), url)
        environment.show_cluster()
        for number in range(jobs - 1):
            environment.pace.set_busy(JobKey(KEY.namespace, f"job-{number}"), is_busy=True)
        yield environment
    await runner.cleanup()


def intent_of(environment: ReconcilerEnvironment) -> str:
    seconds: str = environment.stored()["status"].get("restartState", {}).get("intent", "")
    return seconds


async def until_stopped(environment: ReconcilerEnvironment, *, late: float = 0.0) -> float:
    """Reconcile `late` seconds after each due time; return the seconds until the stop."""
    while not intent_of(environment):
        delay = await environment.reconciler.round(KEY)
        assert delay is not None
        environment.now += timedelta(seconds=delay + late)
        assert (environment.now - NOW).total_seconds() < 7 * 3600, "the stall was not detected"
    return (environment.now - NOW).total_seconds()


@pytest.mark.row("B13")
@pytest.mark.parametrize(
    ("jobs", "poll"), [(100, 5.0), (3000, 150.0), (10_000, 500.0), (100_000, 5000.0)]
)
async def test_stall_is_detected_within_two_polls_after_deadline(
    jobs: int, poll: float, tmp_path: Path
) -> None:
    async with make_environment(tmp_path, jobs) as environment:
        seconds = await until_stopped(environment)

    assert environment.pace.poll_seconds(KEY) == poll
    assert STALL_SECONDS < seconds <= STALL_SECONDS + 2 * poll + 5


async def test_delayed_reconciles_do_not_reset_deadlines(tmp_path: Path) -> None:
    async with make_environment(tmp_path, 10_000) as environment:
        seconds = await until_stopped(environment, late=600.0)

    assert STALL_SECONDS < seconds < STALL_SECONDS + 2 * 1100 + 5


async def test_operator_downtime_resets_deadlines_with_many_jobs(
    tmp_path: Path,
) -> None:
    async with make_environment(tmp_path, 10_000) as environment:
        environment.now += timedelta(seconds=await environment.reconciler.round(KEY) or 0)
        environment.restart()
        environment.now += timedelta(hours=3)
        await environment.reconciler.round(KEY)

        assert not intent_of(environment)
        environment.now += timedelta(seconds=500)
        await environment.reconciler.round(KEY)
        assert not intent_of(environment)
