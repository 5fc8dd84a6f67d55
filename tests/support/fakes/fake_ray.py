"""Fake Ray heads for the operator: Jobs REST API and /progress on one free port.

Each Ray cluster has its own base path, so one server can serve many heads. Drivers follow a script
and advance with the clock.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import CheckpointRef, Failure, Progress, Stage
from raggrpo_api.trainer.sealed_config import open_sealed
from support.builders.operator.jobs import KNOWN_TINY

STEP_SECONDS = 0.1


@dataclass(frozen=True)
class Script:
    """Script of one attempt's driver."""

    fails_at: int | None = None
    exit_code: int = 12
    waits_at: int | None = None
    """Step at which the driver waits for a stop or for `FakeRay.may_continue`."""
    step_seconds: float = STEP_SECONDS


@dataclass
class Driver:
    """One submission."""

    submission: str
    environment: dict[str, str]
    script: Script
    first_step: int
    config: TrainerConfig
    started: float = field(default_factory=time.monotonic)
    status: str = "RUNNING"
    exit_code: int | None = None
    step: int = 0

    def move(self, may_continue: bool) -> None:
        """Advance the driver to the current time, within its script."""
        if self.status != "RUNNING":
            return
        total, script = self.config.training.total_steps, self.script
        due = self.first_step + int((time.monotonic() - self.started) / script.step_seconds)
        limit = script.waits_at if script.waits_at is not None and not may_continue else total
        self.step = min(due, total, limit)
        if script.fails_at is not None and self.step >= script.fails_at:
            self.step, self.status, self.exit_code = script.fails_at, "FAILED", script.exit_code
        elif self.step >= total:
            self.status, self.exit_code = "SUCCEEDED", 0

    @property
    def saved(self) -> int:
        every = self.config.checkpoint.every_steps
        is_done = self.status in ("SUCCEEDED", "STOPPED") or self.exit_code == ExitCode.PREEMPTED
        return max(self.first_step, self.step if is_done else self.step // every * every)

    def progress(self) -> Progress:
        code = self.exit_code
        return Progress(
            attempt=self.config.attempt.number,
            stage=Stage.FINISHED if self.status == "SUCCEEDED" else Stage.TRAINING,
            step=self.step,
            total_steps=self.config.training.total_steps,
            started_from_step=self.first_step,
            seconds_per_step=self.script.step_seconds,
            seconds_by_stage={"train": self.script.step_seconds},
            checkpoint=CheckpointRef(step=self.saved, path=f"/{self.saved}")
            if self.saved
            else None,
            failure=Failure(exit_code=code, message="a rank was lost") if code else None,
        )


class FakeRay:
    """All heads, their drivers and checkpoints."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        """Scripts by submission id; other drivers run without fault."""
        self.submitted: list[str] = []
        self.refused: int = 0
        """Number of calls without the token of the cluster."""
        self.may_continue = False
        self.drips = False
        """Whether responses are endless, at one byte per second."""
        self.url = ""
        self._drivers: dict[str, dict[str, Driver]] = {}
        self._tokens: dict[str, str] = {}
        self._saved: dict[str, int] = {}

    def expect(self, cluster: str, token: str) -> None:
        """Set the token that a head accepts."""
        self._tokens[cluster] = token

    def lose(self, cluster: str) -> None:
        """Reset a head, as a restart does."""
        for driver in self._drivers.pop(cluster, {}).values():
            self._record_saved(driver)

    def fail(self, cluster: str, exit_code: int) -> None:
        """Let the running driver of a head exit with this code."""
        for driver in self._drivers.get(cluster, {}).values():
            if driver.status == "RUNNING":
                driver.status, driver.exit_code = "FAILED", exit_code

    def finish_all(self) -> None:
        for known in self._drivers.values():
            for driver in known.values():
                driver.started -= driver.config.training.total_steps * driver.script.step_seconds

    def tokens(self) -> list[str]:
        """Return all tokens, to search for leaks."""
        return list(self._tokens.values())

    async def status(self, request: web.Request) -> web.Response:
        """GET /api/jobs/{id}."""
        driver = self._driver(request)
        if driver is None:
            return web.Response(status=404, text="no such job")
        return web.json_response(
            {
                "submission_id": driver.submission,
                "status": driver.status,
                "message": "",
                "driver_exit_code": driver.exit_code,
                "runtime_env": {"env_vars": driver.environment},
            }
        )

    async def submit(self, request: web.Request) -> web.Response:
        """POST /api/jobs/. A duplicate id gets HTTP 500, as in Ray."""
        body = await request.json()
        cluster, submission = request.match_info["cluster"], body["submission_id"]
        drivers = self._drivers.setdefault(cluster, {})
        if submission in drivers:
            return web.Response(status=500, text=f"{submission} exists")
        environment = body["runtime_env"]["env_vars"]
        config = TrainerConfig.model_validate_json(open_sealed(environment))
        for earlier in [each for known in self._drivers.values() for each in known.values()]:
            if earlier.config.checkpoint.path == config.checkpoint.path:
                self._record_saved(earlier)
        first = self._saved.get(config.checkpoint.path, 0)
        script = self.scripts.get(submission, Script())
        drivers[submission] = Driver(submission, environment, script, first, config)
        self.submitted.append(submission)
        return web.json_response({"submission_id": submission})

    async def stop(self, request: web.Request) -> web.Response:
        """POST /api/jobs/{id}/stop: the driver saves and exits."""
        driver = self._driver(request)
        if driver is None:
            return web.Response(status=404)
        if driver.status == "RUNNING":
            driver.status = "STOPPED"
        return web.json_response({"stopped": True})

    async def progress(self, request: web.Request) -> web.Response:
        """GET /progress of the newest driver."""
        drivers = list(self._drivers.get(request.match_info["cluster"], {}).values())
        if not drivers:
            return web.Response(status=503)
        drivers[-1].move(self.may_continue)
        text = drivers[-1].progress().model_dump_json(by_alias=True)
        return web.json_response(json.loads(text))

    async def version(self, request: web.Request) -> web.Response:
        """GET /api/version."""
        return web.json_response({"ray_version": KNOWN_TINY.ray_version})

    def _driver(self, request: web.Request) -> Driver | None:
        drivers = self._drivers.get(request.match_info["cluster"], {})
        driver = drivers.get(request.match_info["submission"])
        if driver is not None:
            driver.move(self.may_continue)
        return driver

    def _record_saved(self, driver: Driver) -> None:
        driver.move(self.may_continue)
        path = driver.config.checkpoint.path
        self._saved[path] = max(self._saved.get(path, 0), driver.saved)

    @web.middleware
    async def check_token(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Respond with 401 if the cluster's token is missing or wrong."""
        expected = self._tokens.get(request.match_info["cluster"])
        if request.headers.get("Authorization") != f"Bearer {expected}":
            self.refused += 1
            return web.Response(status=401, text="Unauthorized")
        if self.drips:
            return await self._drip(request)
        return await handler(request)

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        with suppress(ConnectionError):
            await answer.prepare(request)
            while True:
                await answer.write(b" ")
                await asyncio.sleep(1)
        return answer


@asynccontextmanager
async def fake_ray() -> AsyncIterator[FakeRay]:
    """Serve heads at `url`/<name of the RayCluster>."""
    ray = FakeRay()
    app = web.Application(middlewares=[ray.check_token])
    app.add_routes(
        [
            web.get("/{cluster}/api/jobs/{submission}", ray.status),
            web.post("/{cluster}/api/jobs/", ray.submit),
            web.post("/{cluster}/api/jobs/{submission}/stop", ray.stop),
            web.get("/{cluster}/progress", ray.progress),
            web.get("/{cluster}/api/version", ray.version),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ray.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield ray
    finally:
        await asyncio.wait_for(runner.cleanup(), 10)
