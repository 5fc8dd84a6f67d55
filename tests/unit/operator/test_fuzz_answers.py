"""Rounds with arbitrary answers of a tenant's image; `make fuzz-answers` runs more cases."""

import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from aiohttp import ClientSession, web
from openapi_schema_validator import OAS30Validator

from raggrpo_api import names
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, Facts, PreflightResult
from raggrpo_api.trainer.progress import (
    CheckpointRef,
    EndpointOutage,
    Failure,
    Metric,
    Progress,
    SkippedCheckpoint,
    Stage,
)
from raggrpo_operator.core.lifecycle.before_attempt.preflight import spec_hash
from raggrpo_operator.crd import job_schema
from raggrpo_operator.errors import OperatorError
from support.builders.operator.adversarial_answers import adversarial_answers, adversarial_value
from support.builders.operator.jobs import make_job
from support.builders.operator.pods import Manifest, container, make_pod
from support.operator.reconciler_environment import (
    KEY,
    NOW,
    UID,
    ReconcilerEnvironment,
    make_running_status,
)

ANSWERS = int(os.environ.get("RAGGRPO_FUZZ_ANSWERS", "150"))
"""Cases of each kind."""
MAX_STATUS_BYTES = 64 * 1024
MAX_MEMORY_BYTES = 128 * 2**20
CONTROLS = {*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2066} - {0x0A}

PROGRESS = Progress(
    attempt=1,
    stage=Stage.TRAINING,
    step=12,
    total_steps=100,
    started_from_step=0,
    seconds_per_step=1.5,
    seconds_by_stage={"train": 1.0},
    metrics=[
        Metric(name=name, value="0.5")
        for name in ("reward_mean", "host_memory_bytes", "rank_memory_bytes")
    ],
    checkpoint=CheckpointRef(step=5, path="/mnt/runs/5", time="2026-11-21T12:01:00Z"),
    skipped_checkpoints=[SkippedCheckpoint(path="/mnt/runs/6", reason="incomplete")],
    in_place=["RolloutEngineLost: engine 0 was replaced"],
    pinned={"precision": "FP32", "attention": "Sdpa"},
    waiting_for=[EndpointOutage(name="endpoint kb", since="2026-11-21T12:01Z", cause="Timeout")],
    waited_seconds=12.5,
    failure=Failure(exit_code=12, message="a rank was lost"),
    time="2026-11-21T12:01:30Z",
)
RESULT = PreflightResult(
    facts=Facts(
        parameters=25_000_000, layers=8, hidden_size=512, heads=8, kv_heads=8, head_size=64,
        vocabulary=32_000, context_length=2048, rows=1000, corpus_bytes=10**6,
        ray_version="2.60.0", schema_digest="0123456789abcdef",
    ),
    checks=[Check(id=CheckId.PATHS, state=CheckState.PASSED, evidence="all there")],
)  # fmt: skip
DETAILS = {
    "submission_id": "small-a1",
    "status": "RUNNING",
    "message": "log\nlog",
    "driver_exit_code": None,
    "runtime_env": {"env_vars": {"A": "b"}},
}
ENDED = {
    "terminated": {
        "reason": "Error",
        "message": "killed",
        "exitCode": 1,
        "startedAt": "2026-11-21T12:00:00Z",
        "finishedAt": "2026-11-21T12:01:00Z",
    }
}
WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


class AdversarialHead:
    """A server of the Ray API and /progress."""

    def __init__(self) -> None:
        self.details = json.dumps(DETAILS).encode()
        self.progress = PROGRESS.model_dump_json(by_alias=True).encode()

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(body=self.progress if "progress" in request.path else self.details)


@pytest_asyncio.fixture
async def head() -> AsyncIterator[tuple[AdversarialHead, str]]:
    adversarial = AdversarialHead()
    app = web.Application()
    app.add_routes([web.route("*", "/{anything:.*}", adversarial.answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield adversarial, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture(scope="module")
def validator() -> OAS30Validator:
    return OAS30Validator(job_schema())


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    process = psutil.Process()
    idle = process.memory_info().rss
    yield
    assert process.memory_info().rss - idle < MAX_MEMORY_BYTES


def owned(manifest: Manifest, uid: str) -> Manifest:
    owner = {"uid": uid, "controller": True, "kind": names.KIND, "apiVersion": names.API_VERSION}
    manifest["metadata"]["ownerReferences"] = [owner]
    manifest["metadata"]["namespace"] = KEY.namespace
    return manifest


async def survives(
    environment: ReconcilerEnvironment, validator: OAS30Validator, answer: Any
) -> None:
    """Run a round and check that the status is valid, small and printable."""
    with contextlib.suppress(OperatorError):
        await environment.reconciler.round(KEY)
    stored = environment.stored()
    problems = [each.message[:300] for each in validator.iter_errors(stored)]
    assert problems == [], answer
    text = json.dumps(stored.get("status", {}), ensure_ascii=False)
    assert len(text.encode()) <= MAX_STATUS_BYTES, answer
    for leaf in leaves(stored.get("status", {})):
        if isinstance(leaf, int | float):
            assert abs(leaf) < 2**63, answer
            continue
        assert not CONTROLS & set(map(ord, leaf)), (leaf[:200], answer)
    reasons = [each["reason"] for each in stored.get("status", {}).get("conditions", [])]
    assert "InternalError" not in reasons, answer


def leaves(value: Any) -> Iterator[str | float]:
    """Yield all texts, keys and numbers."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif value is not None:
        yield value


async def test_valid_head_responses_update_status_progress(
    tmp_path: Path,
    session: ClientSession,
    head: tuple[AdversarialHead, str],
    validator: OAS30Validator,
) -> None:
    environment = ReconcilerEnvironment(
        tmp_path, session, make_running_status(RESULT.facts), head[1]
    )
    environment.show_cluster()

    await survives(environment, validator, "the truth")

    assert environment.stored()["status"]["progress"]["step"] == PROGRESS.step


@pytest.mark.row("E3")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["details", "progress"])
async def test_round_survives_arbitrary_head_responses(
    kind: str,
    tmp_path: Path,
    session: ClientSession,
    head: tuple[AdversarialHead, str],
    validator: OAS30Validator,
    bounded_memory: None,
) -> None:
    adversarial, url = head
    valid = DETAILS if kind == "details" else json.loads(PROGRESS.model_dump_json(by_alias=True))
    answers = adversarial_answers(valid, seed=14)
    for number in range(ANSWERS):
        answer = next(answers)
        setattr(adversarial, kind, answer)
        if number % 10 == 0:  # a new job after each 10 cases
            environment = ReconcilerEnvironment(
                tmp_path, session, make_running_status(RESULT.facts), url
            )
            environment.show_cluster()
        await survives(environment, validator, answer[:2000])


@pytest.mark.row("E14")
@pytest.mark.timeout(0)
async def test_round_survives_arbitrary_termination_messages(
    tmp_path: Path,
    session: ClientSession,
    validator: OAS30Validator,
    bounded_memory: None,
) -> None:
    answers = adversarial_answers(json.loads(RESULT.model_dump_json(by_alias=True)), seed=15)
    for number in range(ANSWERS):
        message = next(answers).decode(errors="replace")
        state = {"terminated": {"exitCode": number % 3, "reason": "Error", "message": message}}
        pod = make_pod(
            container(state),
            role="preflight",
            labels={names.LABEL_SPEC_HASH: spec_hash(make_job())},
            name="small-preflight",
        )
        environment = ReconcilerEnvironment(tmp_path, session)
        environment.objects.pods = {KEY: [owned(pod, UID)]}
        for _ in range(2):
            await survives(environment, validator, message[:2000])


@pytest.mark.timeout(0)
async def test_round_survives_arbitrary_pod_statuses(
    tmp_path: Path,
    session: ClientSession,
    validator: OAS30Validator,
    bounded_memory: None,
) -> None:
    """The API server validates types; values may be missing or absurd."""
    chance = random.Random(16)
    for number in range(ANSWERS):
        kind, owner = ("head", "worker", "preflight")[number % 3], "c-uid"
        state = chance.choice((ENDED, WAITING, {"running": {}}))
        part = adversarial_texts(state, chance)
        pod = make_pod(
            container(part, adversarial_texts(ENDED, chance)), kind=kind, name=f"small-{kind}"
        )
        pod["status"]["phase"] = chance.choice(("Pending", "Running", "Failed", "Succeeded"))
        pod["status"] |= adversarial_texts({"reason": "Evicted", "message": "memory"}, chance)
        if kind == "preflight":
            owner, pod["metadata"]["labels"][names.LABEL_ROLE] = UID, "preflight"
        environment = ReconcilerEnvironment(
            tmp_path, session, None if kind == "preflight" else make_running_status(RESULT.facts)
        )
        owned(pod, owner)
        environment.show_cluster()
        environment.objects.pods = {KEY: [pod]}
        if kind != "preflight":
            environment.evidence.record(KEY, pod, NOW, was_deleted=bool(number % 2))
        for _ in range(2):
            await survives(environment, validator, pod["status"])


def adversarial_texts(valid: Manifest, chance: random.Random) -> Manifest:
    """Return the object with adversarial texts, without times and with changed numbers."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {key: each for key, each in value.items() if chance.random() < 0.9}
            return {key: changed(each) for key, each in kept.items()}
        if chance.random() < 0.5:
            return value
        if isinstance(value, int):
            return chance.choice((-(2**31), 0, 137, 2**31 - 1))
        if value.startswith("2026"):
            return None
        return next(
            each
            for each in iter(lambda: adversarial_value("", chance), object())
            if isinstance(each, str)
        )

    manifest: Manifest = changed(valid)
    return manifest
