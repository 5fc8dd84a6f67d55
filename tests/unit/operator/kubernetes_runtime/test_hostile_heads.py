"""A head that talks nonsense exempts its job from nothing."""

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
from support.builders.operator.jobs import KNOWN_TINY, a_job
from support.operator.reconciler_environment import KEY, NOW, ReconcilerWorld, a_running_status

ROUND_SECONDS = 5
ENOUGH_SECONDS = 600
NOT_MOUNTED = "an-old-key"
RUNNING = json.dumps({"status": "RUNNING"})
ANSWERS: dict[str, tuple[int, str]] = {
    "nonsense": (200, "[" * 1000),
    "an unknown status": (200, '{"status": "DANCING"}'),
    "a refusal": (403, "no"),
    "an error": (500, "no"),
    "runs for ever, progress is nonsense": (200, RUNNING),
    "forgets the attempt": (404, ""),
    "an unknown key": (200, RUNNING),
}


@contextlib.asynccontextmanager
async def a_head(status: int, text: str) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.add_routes([web.route("*", "/{anything:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def a_world(
    folder: Path, session: ClientSession, url: str, key: str = "", **spec: Any
) -> ReconcilerWorld:
    world = ReconcilerWorld(folder, session, a_running_status(KNOWN_TINY, a_job(spec)), url)
    world.stored()["spec"].update(spec)
    cluster = world.show_cluster(key)
    uid = cluster["metadata"]["uid"]
    world.kube.put(cluster)
    assert cluster["metadata"]["uid"] == uid
    return world


@pytest.mark.row("E3")
@pytest.mark.parametrize("what", ANSWERS)
@pytest.mark.parametrize("spec", [{"suspend": True}, {"activeDeadlineSeconds": 60}])
async def test_it_is_suspended_and_ends_by_its_deadline_all_the_same(
    what: str, spec: dict[str, Any], tmp_path: Path, session: ClientSession
) -> None:
    key = NOT_MOUNTED if what == "an unknown key" else ""
    async with a_head(*ANSWERS[what]) as url:
        world = a_world(tmp_path, session, url, key, **spec)
        while "small-c1" in world.kube.named(RAY_CLUSTERS.plural):
            with contextlib.suppress(OperatorError):
                await world.reconciler.round(KEY)
            world.now += timedelta(seconds=ROUND_SECONDS)
            assert (world.now - NOW).total_seconds() < ENOUGH_SECONDS, what

    status = world.stored()["status"]
    why = status["attempts"][-1].get("cause") or status["restartState"]["intent"]
    assert why in ("Suspended", "DeadlineExceeded", "HeadLost")


async def test_a_refusal_is_told_while_decisions_go_on(
    tmp_path: Path, session: ClientSession
) -> None:
    async with a_head(403, "no") as url:
        world = a_world(tmp_path, session, url)
        await world.reconciler.round(KEY)

    assert world.condition("Reconciling")["reason"] == "AccessDenied"
    assert world.condition("Accepted")["status"] == "True"
