"""Client of Ray's Jobs REST API: submit, status, stop. It decides nothing.

Measured behaviour (Ray 2.60): reusing a submission id returns 500, a missing token 401;
`driver_exit_code` is the driver's own exit code, absent for a stopped driver.
"""

import json
import re
from typing import Any

import aiohttp

from raggrpo_api import names
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_operator.core.lifecycle.observed import AttemptObserved, SubmissionStatus

from .errors import AccessRefused, PermanentError, TransientError
from .http_api import HttpApi

CALL_SECONDS = 10.0
LAST_LINES = 5
MAX_LINE = 300
SUBMIT_SECONDS = 60.0
"""Submitting starts a process on the head, which is slow on a busy machine."""


class RayJobs:
    """The Jobs API of one Ray head."""

    def __init__(self, http: HttpApi) -> None:
        self._http = http

    async def submit(
        self, submission_id: str, entrypoint: str, env: dict[str, str], metadata: dict[str, str]
    ) -> None:
        """Submit a driver, unless this submission exists already."""
        if await self._get(submission_id) is not None:
            return
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "metadata": metadata,
            "runtime_env": {"env_vars": env},
        }
        doing = f"submitting {submission_id}"
        if await self._call(doing, "POST", "/api/jobs/", body, SUBMIT_SECONDS) is None:
            raise TransientError(f"{doing}: HTTP 404")

    async def status(self, submission_id: str, number: int) -> AttemptObserved | None:
        """Return the state of a submission, None if the head does not know it."""
        job = await self._get(submission_id)
        if job is None:
            return None
        return AttemptObserved(
            number=number,
            status=SubmissionStatus(job["status"]),
            exit_code=job.get("driver_exit_code"),
            message=last_lines(str(job.get("message") or "")),
        )

    async def environment(self, submission_id: str) -> dict[str, str]:
        """Return the environment of a submission, empty if the head does not know it."""
        job = await self._get(submission_id)
        runtime_env = (job or {}).get("runtime_env") or {}
        return dict(runtime_env.get("env_vars") or {})

    async def stop(self, submission_id: str) -> None:
        """Send SIGTERM to the driver; Ray kills it after the wait time set in its environment."""
        await self._call(f"stopping {submission_id}", "POST", f"/api/jobs/{submission_id}/stop")

    async def _get(self, submission_id: str) -> dict[str, Any] | None:
        doing = f"status of {submission_id}"
        text = await self._call(doing, "GET", f"/api/jobs/{submission_id}")
        if text is None:
            return None
        try:
            body: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise TransientError(f"{doing} is no JSON: {error}") from error
        return body

    async def _call(
        self, doing: str, method: str, path: str, body: object = None, seconds: float = CALL_SECONDS
    ) -> str | None:
        """Return the head's answer, None for HTTP 404."""
        head = f"Ray dashboard {self._http.address}"
        try:
            async with self._http.call(method, path, seconds=seconds, body=body) as response:
                status, text = response.status, await response.text(errors="replace")
        except (aiohttp.ClientError, OSError) as error:
            raise TransientError(f"{head}: {type(error).__name__}: {error}") from error
        if status in (401, 403):
            raise AccessRefused(f"{head}: HTTP {status} {text[:300]}")
        if status >= 400 and status != 404:
            raise TransientError(f"{doing}: HTTP {status} {text[:300]}")
        return None if status == 404 else text


def last_lines(message: str) -> str:
    """Return the end of the driver's log, as appended to Ray's message, without colour codes."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines()
    kept = [line.rstrip()[-MAX_LINE:] for line in lines if line.strip()]
    return "\n".join(kept[-LAST_LINES:])


def submittable(config: TrainerConfig) -> str:
    """Return a configuration as JSON for an environment; raises PermanentError if too long."""
    text = config.to_json()
    if len(text.encode()) > names.MAX_CONFIG_BYTES:
        raise PermanentError(
            f"the configuration has {len(text)} bytes, more than {names.MAX_CONFIG_BYTES}: "
            "shorten templates or file lists"
        )
    return text
