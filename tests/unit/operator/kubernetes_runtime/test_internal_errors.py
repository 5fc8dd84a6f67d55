import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession

from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.http_api import open_session
from raggrpo_operator.kube.client import EVENTS, JOBS, Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey
from raggrpo_operator.kubernetes_runtime.process.installation_keys import read_keys
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_operator.kubernetes_runtime.process.pace import Pace
from raggrpo_operator.kubernetes_runtime.process.work_queue import WorkQueue
from raggrpo_operator.kubernetes_runtime.rounds import reconciler as module
from raggrpo_operator.kubernetes_runtime.rounds.children import Children
from raggrpo_operator.kubernetes_runtime.rounds.heads import HeadAddress, Heads
from raggrpo_operator.kubernetes_runtime.rounds.reconciler import Reconciler
from raggrpo_operator.kubernetes_runtime.rounds.runtime import ReconcilerContext
from raggrpo_operator.kubernetes_runtime.rounds.status_writer import StatusWriter
from raggrpo_operator.kubernetes_runtime.watching.evidence_book import EvidenceBook
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore
from support.builders.jobs import a_raw_job
from support.fakes.fake_kube import FakeKube

KEY = JobKey("team-a", "small")
NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)
ERRORS = b'raggrpo_operator_reconcile_total{controller="raggrpojob",result="error"} 1.0'


class World:
    """A reconciler with one job in the cache and on the API server."""

    def __init__(
        self, folder: Path, session: ClientSession, status: Manifest | None = None
    ) -> None:
        (folder / "current").write_text("an installation key for tests only")
        keys, self.kube, self.metrics = read_keys(folder), FakeKube(), Metrics()
        raw = a_raw_job() | ({"status": status} if status else {})
        raw["metadata"] = {"name": KEY.name, "namespace": KEY.namespace, "uid": "5f1d"}
        raw["metadata"]["generation"] = 1
        self.objects = ClusterObjects(jobs={KEY: [self.kube.put(raw)]})
        store, pace = JobStore(self.objects), Pace(5, 10)
        settings = ClusterSettings(
            trainer_image="trainer:test", operator_namespace="ops", token_key_id="k"
        )
        context = ReconcilerContext(
            self.kube,
            self.objects,
            Children(self.kube, settings, keys),
            Heads(
                lambda *_: HeadAddress("http://127.0.0.1:9", "http://127.0.0.1:9"), open_session()
            ),
            EvidenceBook(timedelta(seconds=120)),
            StatusWriter(self.kube, store, lambda: NOW, pace, instance="me"),
            lambda: NOW,
        )
        self.reconciler = Reconciler(context, store, self.metrics, pace)

    def status(self) -> Manifest:
        found: Manifest = self.kube.objects[JOBS.plural, KEY.namespace, KEY.name]["status"]
        return found

    def condition(self) -> Manifest:
        [found] = [each for each in self.status()["conditions"] if each["type"] == "Reconciling"]
        return found


@pytest_asyncio.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with open_session() as opened:
        yield opened


async def mistaken(*_: Any) -> None:
    raise ZeroDivisionError("a bug,\nin two lines")


async def test_a_mistake_of_the_operator_becomes_a_condition_that_names_itself(
    tmp_path: Path, session: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "reconcile", mistaken)
    world = World(tmp_path, session)

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await world.reconciler.round(KEY)

    told = world.condition()
    assert (told["status"], told["reason"]) == ("True", "InternalError")
    assert told["message"].startswith("ZeroDivisionError at reconciler.py:")
    assert "a bug, in two lines" in told["message"]
    assert sum(verb == "apply_status" for verb, _, _ in world.kube.calls) == 1
    assert len(world.kube.named(EVENTS.plural)) == 1


async def test_the_condition_goes_when_a_round_succeeds(
    tmp_path: Path, session: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, session)
    with monkeypatch.context() as patched:
        patched.setattr(module, "reconcile", mistaken)
        with pytest.raises(ZeroDivisionError):
            await world.reconciler.round(KEY)

    await world.reconciler.round(KEY)

    assert world.condition()["status"] == "False"


async def test_a_status_of_another_release_is_left_as_it_is_but_for_the_condition(
    tmp_path: Path, session: ClientSession
) -> None:
    stored = {"phase": "Running", "attempt": 3, "attempts": [{"number": 3, "cause": "NewerCause"}]}
    world = World(tmp_path, session, json.loads(json.dumps(stored)))

    with pytest.raises(ValueError, match="NewerCause"):
        await world.reconciler.round(KEY)

    assert {name: world.status()[name] for name in stored} == stored
    assert world.condition()["reason"] == "InternalError"
    assert "attempts.0.cause" in world.condition()["message"]


async def test_a_mistake_is_counted_and_logged_with_the_job(
    tmp_path: Path,
    session: ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "reconcile", mistaken)
    world = World(tmp_path, session)
    queue = WorkQueue(
        world.reconciler.round, workers=4, group=lambda key: key.namespace, observer=world.metrics
    )
    task = asyncio.create_task(queue.run())

    queue.add(KEY)
    async with asyncio.timeout(10):
        while ERRORS not in world.metrics.text():  # noqa: ASYNC110 (metrics tell nobody)
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    [logged] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "team-a/small" in logged.getMessage()
    assert logged.exc_info is not None
