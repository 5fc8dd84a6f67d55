"""Client of Ray's Jobs REST API: submit and stop drivers, read their status.

Ray 2.60 returns HTTP 500 for a submission id that exists and HTTP 401 if the token is missing;
`driver_exit_code` is the exit code of the driver, or absent if the driver was stopped.
"""

from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from raggrpo_api import limits
from raggrpo_api.fields.base import AttemptNumber
from raggrpo_api.fields.text import ShortText, one_line, printable
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_operator.core.lifecycle.observed import AttemptObserved, SubmissionStatus

from .errors import PermanentError, TransientError, Unreachable
from .http_api import HttpApi, Response

LAST_LINES = 5
LOW_ON_MEMORY = "killed due to the node running low on memory"
MAX_LINE = 300
Model = TypeVar("Model", bound=BaseModel)


class _RuntimeEnv(BaseModel):
    env_vars: dict[str, str] = {}


class _JobDetails(BaseModel):
    """The fields of Ray's `JobDetails` that the operator reads."""

    status: SubmissionStatus
    message: str | None = None
    driver_exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    runtime_env: _RuntimeEnv | None = None


class _Version(BaseModel):
    ray_version: ShortText = ""


class RayJobs:
    """Client of the Jobs API of one Ray head."""

    def __init__(self, http: HttpApi) -> None:
        self._http = http

    async def submit(
        self, submission_id: str, entrypoint: str, env: dict[str, str], metadata: dict[str, str]
    ) -> None:
        """Submit a driver unless the submission already exists."""
        if await self._get(submission_id) is not None:
            return
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "metadata": metadata,
            "runtime_env": {"env_vars": env},
        }
        call = f"submit {submission_id}"
        limits = self._http.limits
        seconds = limits.submit_seconds - limits.call_seconds
        if await self._call(call, "POST", "/api/jobs/", body, seconds) is None:
            raise TransientError(f"{call}: HTTP 404")

    async def status(self, submission_id: str, number: AttemptNumber) -> AttemptObserved | None:
        """Return the state of a submission, or None if the head has no such submission."""
        job = await self._get(submission_id)
        if job is None:
            return None
        text = job.message or ""
        out_of_memory = next((line for line in text.splitlines() if LOW_ON_MEMORY in line), "")
        message = last_lines(out_of_memory or text)
        return AttemptObserved(
            number, job.status, job.driver_exit_code, message, bool(out_of_memory)
        )

    async def ray_version(self) -> str:
        """Return the Ray version of the head, or "" if the head does not report its version."""
        call = "Ray version"
        response = await self._call(call, "GET", "/api/version")
        return "" if response is None else self._read(_Version, response, call).ray_version

    async def environment(self, submission_id: str) -> dict[str, str]:
        """Return the environment of a submission, or {} if the head has no such submission."""
        job = await self._get(submission_id)
        return job.runtime_env.env_vars if job and job.runtime_env else {}

    async def stop(self, submission_id: str) -> None:
        """Send SIGTERM to the driver; Ray kills it after RAY_JOB_STOP_WAIT_TIME_S."""
        await self._call(f"stop {submission_id}", "POST", f"/api/jobs/{submission_id}/stop")

    async def _get(self, submission_id: str) -> _JobDetails | None:
        call = f"status of {submission_id}"
        response = await self._call(call, "GET", f"/api/jobs/{submission_id}")
        return None if response is None else self._read(_JobDetails, response, call)

    def _read(self, model: type[Model], response: Response, call: str) -> Model:
        try:
            return model.model_validate_json(response.body)
        except ValidationError as error:
            first = error.errors()[0]
            why = one_line(f"{'.'.join(map(str, first['loc']))} {first['msg']}", MAX_LINE)
            raise Unreachable(f"{self._http.address}: {call} is unreadable: {why}") from None

    async def _call(
        self, call: str, method: str, path: str, body: object = None, seconds: float = 0.0
    ) -> Response | None:
        """Return the response of the head, or None for HTTP 404."""
        limit = seconds or self._http.limits.call_seconds
        response = await self._http.call(method, path, seconds=limit, body=body)
        if response.status == 404:
            return None
        if not 200 <= response.status < 300:
            raise TransientError(f"{call}: HTTP {response.status} {response.excerpt}")
        return response


def last_lines(message: str) -> str:
    """Return the last lines of the driver log, which Ray appends to the status message."""
    tail = printable(message[-4 * LAST_LINES * MAX_LINE :]).splitlines()
    lines = [line.rstrip()[-MAX_LINE:] for line in tail if line.strip()]
    return "\n".join(lines[-LAST_LINES:])


def config_json(config: TrainerConfig) -> str:
    """Return the configuration as JSON; raises PermanentError if it exceeds MAX_CONFIG_BYTES."""
    text = config.to_json()
    if len(text.encode()) > limits.MAX_CONFIG_BYTES:
        raise PermanentError(
            f"the trainer configuration has {len(text)} bytes (limit {limits.MAX_CONFIG_BYTES}): "
            "shorten templates or file lists"
        )
    return text
