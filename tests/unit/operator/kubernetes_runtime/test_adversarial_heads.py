"""Deadlines and suspension apply to jobs whose head returns invalid answers."""

import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from raggrpo_operator.errors import OperatorError
from raggrpo_operator.kube.client import RAY_CLUSTERS
from support.builders.operator.jobs import KNOWN_TINY, make_job
from support.operator.reconciler_environment import (
    KEY,
    NOW,
    ReconcilerEnvironment,
    make_running_status,
)

ROUND_SECONDS = 5
ENOUGH_SECONDS = 600
NOT_MOUNTED = "an-old-key"
RUNNING = json.dumps({"status": "RUNNING"})
ANSWERS: dict[str, tuple[int, str]] = {
    "nonsense": (200, "[" * 1000),
    "an unknown status": (200, '{"status": "DANCING"}'),
    "a rejection": (403, "no"),
    "an error": (500, "no"),
    "runs forever, progress is nonsense": (200, RUNNING),
    "an unknown attempt": (404, ""),
    "an unknown key": (200, RUNNING),
}


@contextlib.asynccontextmanager
async def make_head(status: int, text: str) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.add_routes([web.route("*", "/{anything:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def make_environment(
    folder: Path, session: ClientSession, url: str, key: str = "", **spec: Any
) -> ReconcilerEnvironment:
    environment = ReconcilerEnvironment(
        folder, session, make_running_status(KNOWN_TINY, make_job(spec)), url
    )
    environment.stored()["spec"].update(spec)
    cluster = environment.show_cluster(key)
    uid = cluster["metadata"]["uid"]
    environment.kube.put(cluster)
    assert cluster["metadata"]["uid"] == uid
    return environment


@pytest.mark.row("E3")
@pytest.mark.parametrize("what", ANSWERS)
@pytest.mark.parametrize("spec", [{"suspend": True}, {"activeDeadlineSeconds": 60}])
async def test_job_with_adversarial_head_stops_when_suspended_or_past_active_deadline(
    what: str, spec: dict[str, Any], tmp_path: Path, session: ClientSession
) -> None:
    key = NOT_MOUNTED if what == "an unknown key" else ""
    async with make_head(*ANSWERS[what]) as url:
        environment = make_environment(tmp_path, session, url, key, **spec)
        while "small-c1" in environment.kube.named(RAY_CLUSTERS.plural):
            with contextlib.suppress(OperatorError):
                await environment.reconciler.round(KEY)
            environment.now += timedelta(seconds=ROUND_SECONDS)
            assert (environment.now - NOW).total_seconds() < ENOUGH_SECONDS, what

    status = environment.stored()["status"]
    why = status["attempts"][-1].get("cause") or status["restartState"]["intent"]
    assert why in ("Suspended", "DeadlineExceeded", "HeadLost")


async def test_rejected_token_is_reported_and_reconcile_continues(
    tmp_path: Path, session: ClientSession
) -> None:
    async with make_head(403, "no") as url:
        environment = make_environment(tmp_path, session, url)
        await environment.reconciler.round(KEY)

    assert environment.condition("Reconciling")["reason"] == "AccessDenied"
    assert environment.condition("Accepted")["status"] == "True"
