"""Client of Ray's Jobs REST API: submit, status, stop. It decides nothing.

Measured behaviour (Ray 2.60): reusing a submission id returns 500, a missing token 401;
`driver_exit_code` is the driver's own exit code, absent for a stopped driver.
"""

from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from raggrpo_api import names
from raggrpo_api.fields.base import AttemptNumber
from raggrpo_api.fields.text import Words, one_line, printable
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_operator.core.lifecycle.observed import AttemptObserved, SubmissionStatus

from .errors import PermanentError, TransientError, Unreachable
from .http_api import Answer, HttpApi

LAST_LINES = 5
LOW_ON_MEMORY = "killed due to the node running low on memory"
MAX_LINE = 300
Model = TypeVar("Model", bound=BaseModel)


class _RuntimeEnv(BaseModel):
    env_vars: dict[str, str] = {}


class _JobDetails(BaseModel):
    """What is read of Ray's answer about a submission."""

    status: SubmissionStatus
    message: str | None = None
    driver_exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    runtime_env: _RuntimeEnv | None = None


class _Version(BaseModel):
    ray_version: Words = ""


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
        limits = self._http.limits
        seconds = limits.submit_seconds - limits.call_seconds
        if await self._call(doing, "POST", "/api/jobs/", body, seconds) is None:
            raise TransientError(f"{doing}: HTTP 404")

    async def status(self, submission_id: str, number: AttemptNumber) -> AttemptObserved | None:
        """Return the state of a submission, None if the head does not know it."""
        job = await self._get(submission_id)
        if job is None:
            return None
        told = job.message or ""
        short = next((line for line in told.splitlines() if LOW_ON_MEMORY in line), "")
        message = last_lines(short or told)
        return AttemptObserved(number, job.status, job.driver_exit_code, message, bool(short))

    async def ray_version(self) -> str:
        """Return the head's Ray version, empty if it tells none."""
        doing = "Ray's version"
        answer = await self._call(doing, "GET", "/api/version")
        return "" if answer is None else self._read(_Version, answer, doing).ray_version

    async def environment(self, submission_id: str) -> dict[str, str]:
        """Return the environment of a submission, empty if the head does not know it."""
        job = await self._get(submission_id)
        return job.runtime_env.env_vars if job and job.runtime_env else {}

    async def stop(self, submission_id: str) -> None:
        """Send SIGTERM to the driver; Ray kills it after the wait time set in its environment."""
        await self._call(f"stopping {submission_id}", "POST", f"/api/jobs/{submission_id}/stop")

    async def _get(self, submission_id: str) -> _JobDetails | None:
        doing = f"status of {submission_id}"
        answer = await self._call(doing, "GET", f"/api/jobs/{submission_id}")
        return None if answer is None else self._read(_JobDetails, answer, doing)

    def _read(self, model: type[Model], answer: Answer, doing: str) -> Model:
        try:
            return model.model_validate_json(answer.body)
        except ValidationError as error:
            first = error.errors()[0]
            why = one_line(f"{'.'.join(map(str, first['loc']))} {first['msg']}", MAX_LINE)
            raise Unreachable(f"{self._http.address}: {doing} is unreadable: {why}") from None

    async def _call(
        self, doing: str, method: str, path: str, body: object = None, seconds: float = 0.0
    ) -> Answer | None:
        """Return the head's answer, None for HTTP 404."""
        limit = seconds or self._http.limits.call_seconds
        answer = await self._http.call(method, path, seconds=limit, body=body)
        if answer.status == 404:
            return None
        if not 200 <= answer.status < 300:
            raise TransientError(f"{doing}: HTTP {answer.status} {answer.excerpt}")
        return answer


def last_lines(message: str) -> str:
    """Return the end of the driver's log, as appended to Ray's message."""
    shown = printable(message[-4 * LAST_LINES * MAX_LINE :]).splitlines()
    kept = [line.rstrip()[-MAX_LINE:] for line in shown if line.strip()]
    return "\n".join(kept[-LAST_LINES:])


def config_json(config: TrainerConfig) -> str:
    """Return a configuration as JSON for an environment; raises PermanentError if too long."""
    text = config.to_json()
    if len(text.encode()) > names.MAX_CONFIG_BYTES:
        raise PermanentError(
            f"the configuration has {len(text)} bytes, more than {names.MAX_CONFIG_BYTES}: "
            "shorten templates or file lists"
        )
    return text
