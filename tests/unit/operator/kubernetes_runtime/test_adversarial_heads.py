"""Deadlines and suspension apply to jobs whose head returns invalid answers."""

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from raggrpo_api.trainer.progress import CheckpointRef, EndpointOutage, Progress, Stage
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.kube.client import RAY_CLUSTERS
from raggrpo_operator.kubernetes_runtime.rounds.status_writer import (
    EVENT_BURST,
    EVENT_SECONDS,
    REPORT_BURST,
    REPORT_SECONDS,
)
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


Handler = Callable[[web.Request], Awaitable[web.Response]]


def make_head(status: int, text: str) -> contextlib.AbstractAsyncContextManager[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return serving(answer)


@contextlib.asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    """Serve a head; yield its URL."""
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


def alternating_progress(call: int) -> Progress:
    """Return the progress of a head that reports other values at each call."""
    is_odd, step = bool(call % 2), 1 + call % 2
    outage = EndpointOutage(name="endpoint kb", cause="Timeout")
    return Progress(
        attempt=1,
        stage=Stage.WAITING_FOR_ENDPOINT if is_odd else Stage.TRAINING,
        step=step,
        started_from_step=0,
        checkpoint=CheckpointRef(step=step, path=f"/mnt/step-{step}"),
        best_step=step,
        best_score=str(step),
        in_place=[str(step)],
        save_seconds=float(call),
        waited_seconds=float(call),
        waiting_for=[outage] if is_odd else [],
    )


async def test_alternating_head_causes_limited_writes_and_events(
    tmp_path: Path, session: ClientSession
) -> None:
    calls, seconds = itertools.count(), 300

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/progress":
            progress = alternating_progress(next(calls))
            return web.Response(text=progress.model_dump_json(by_alias=True))
        return web.Response(text=RUNNING)

    async with serving(answer) as url:
        status = make_running_status(KNOWN_TINY, make_job())
        environment = ReconcilerEnvironment(tmp_path, session, status, url, status_seconds=10)
        environment.kube.put(environment.show_cluster())
        for _ in range(seconds):
            await environment.reconciler.round(KEY)
            environment.now += timedelta(seconds=1)

    assert next(calls) == seconds
    writes = sum(verb == "apply_status" for verb, _, _ in environment.kube.calls)
    events = [name for plural, _, name in environment.kube.objects if plural == "events"]
    assert REPORT_BURST < writes < REPORT_BURST + 2 * seconds / REPORT_SECONDS + 10
    assert len(events) < 4 * (EVENT_BURST + seconds / EVENT_SECONDS)
