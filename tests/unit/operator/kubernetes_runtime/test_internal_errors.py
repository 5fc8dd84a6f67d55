import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from raggrpo_operator.kube.client import EVENTS
from raggrpo_operator.kubernetes_runtime.process.work_queue import WorkQueue
from raggrpo_operator.kubernetes_runtime.rounds import reconciler as module
from raggrpo_operator.kubernetes_runtime.watching.trimming import trim_job
from support.operator.reconciler_environment import KEY, ReconcilerEnvironment

ERRORS = b'raggrpo_operator_reconcile_total{controller="raggrpojob",result="error"} 1.0'


async def raise_internal_error(*_: Any) -> None:
    raise ZeroDivisionError("a bug,\nin two lines")


@pytest.mark.row("E7")
async def test_internal_error_sets_reconciling_condition_once(
    tmp_path: Path, session: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "reconcile", raise_internal_error)
    environment = ReconcilerEnvironment(tmp_path, session)

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await environment.reconciler.round(KEY)

    condition = environment.condition("Reconciling")
    assert (condition["status"], condition["reason"]) == ("True", "InternalError")
    assert condition["message"].startswith("ZeroDivisionError at reconciler.py:")
    assert "a bug, in two lines" in condition["message"]
    assert sum(verb == "apply_status" for verb, _, _ in environment.kube.calls) == 1
    assert len(environment.kube.named(EVENTS.plural)) == 1


async def test_reconciling_condition_is_cleared_after_success(
    tmp_path: Path, session: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = ReconcilerEnvironment(tmp_path, session)
    with monkeypatch.context() as patched:
        patched.setattr(module, "reconcile", raise_internal_error)
        with pytest.raises(ZeroDivisionError):
            await environment.reconciler.round(KEY)

    await environment.reconciler.round(KEY)

    assert environment.condition("Reconciling")["status"] == "False"


async def test_status_of_newer_release_is_kept_except_reconciling_condition(
    tmp_path: Path, session: ClientSession
) -> None:
    stored = {"phase": "Running", "attempt": 3, "attempts": [{"number": 3, "cause": "NewerCause"}]}
    environment = ReconcilerEnvironment(tmp_path, session, json.loads(json.dumps(stored)))

    with pytest.raises(ValueError, match="NewerCause"):
        await environment.reconciler.round(KEY)

    assert {name: environment.stored()["status"][name] for name in stored} == stored
    assert environment.condition("Reconciling")["reason"] == "InternalError"
    assert "attempts.0.cause" in environment.condition("Reconciling")["message"]


@pytest.mark.row("E7")
async def test_internal_error_is_counted_and_logged_with_job(
    tmp_path: Path,
    session: ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "reconcile", raise_internal_error)
    environment = ReconcilerEnvironment(tmp_path, session)
    queue = WorkQueue(
        environment.reconciler.round,
        workers=4,
        group=lambda key: key.namespace,
        observer=environment.metrics,
    )
    task = asyncio.create_task(queue.run())

    queue.add(KEY)
    async with asyncio.timeout(10):
        while ERRORS not in environment.metrics.text():  # noqa: ASYNC110 (metrics have no event)
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    [logged] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "team-a/small" in logged.getMessage()
    assert logged.exc_info is not None


async def test_oversized_spec_is_rejected(tmp_path: Path, session: ClientSession) -> None:
    environment = ReconcilerEnvironment(tmp_path, session)
    environment.objects.jobs = {
        KEY: [trim_job(environment.stored() | {"spec": {"env": ["x" * 300_000]}})]
    }

    await environment.reconciler.round(KEY)

    condition = environment.condition("Accepted")
    assert (condition["status"], condition["reason"]) == ("False", "SpecTooLarge")
    assert "shorten" in condition["message"]
