"""Client of Ray's Jobs REST API: submit, status, stop. It decides nothing.

Measured behaviour (Ray 2.60): a used submission id answers 500; the driver's own exit code is
`driver_exit_code`; a stopped driver has none; without a token 401.
"""

import re
from typing import Any

import httpx

from raggrpo_api import names
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_operator.core.lifecycle.observed import AttemptObserved, SubmissionStatus

from .errors import AccessRefused, PermanentError, TransientError

TIMEOUT_SECONDS = 10.0
LAST_LINES = 5
MAX_LINE = 300
SUBMIT_SECONDS = 60.0
"""Submitting starts a process on the head, which takes its time on a busy machine."""


class RayJobs:
    """The Jobs API of one Ray head."""

    def __init__(
        self, address: str, token: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=address,
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self, submission_id: str, entrypoint: str, env: dict[str, str], metadata: dict[str, str]
    ) -> None:
        """Submit a driver; does nothing when this submission exists already."""
        if await self._get(submission_id) is not None:
            return
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "metadata": metadata,
            "runtime_env": {"env_vars": env},
        }
        answer = await self._call("POST", "/api/jobs/", json=body, timeout=SUBMIT_SECONDS)
        if answer.status_code >= 400:
            raise TransientError(f"submitting {submission_id}: {_explain(answer)}")

    async def status(self, submission_id: str, number: int) -> AttemptObserved | None:
        """Return what is known of a submission, None when the head does not know it."""
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
        """Return the environment that a submission was made with; empty when it is unknown."""
        job = await self._get(submission_id)
        runtime_env = (job or {}).get("runtime_env") or {}
        return dict(runtime_env.get("env_vars") or {})

    async def stop(self, submission_id: str) -> None:
        """SIGTERM the driver; Ray kills it after the wait time of its environment."""
        answer = await self._call("POST", f"/api/jobs/{submission_id}/stop")
        if answer.status_code >= 400 and answer.status_code != 404:
            raise TransientError(f"stopping {submission_id}: {_explain(answer)}")

    async def logs(self, submission_id: str) -> str:
        """Return the driver's output so far."""
        answer = await self._call("GET", f"/api/jobs/{submission_id}/logs")
        if answer.status_code >= 400:
            raise TransientError(f"logs of {submission_id}: {_explain(answer)}")
        return str(answer.json().get("logs") or "")

    async def _get(self, submission_id: str) -> dict[str, Any] | None:
        answer = await self._call("GET", f"/api/jobs/{submission_id}")
        if answer.status_code == 404:
            return None
        if answer.status_code >= 400:
            raise TransientError(f"status of {submission_id}: {_explain(answer)}")
        try:
            body: dict[str, Any] = answer.json()
        except ValueError as error:
            raise TransientError(f"status of {submission_id} is no JSON: {error}") from error
        return body

    async def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = await self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise TransientError(f"Ray dashboard {self._http.base_url}: {error!r}") from error
        if answer.status_code in (401, 403):
            raise AccessRefused(f"Ray dashboard {self._http.base_url}: {_explain(answer)}")
        return answer


def last_lines(message: str) -> str:
    """Return the end of the driver's log, which Ray appends to its message, without colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines()
    told = [line.rstrip()[-MAX_LINE:] for line in lines if line.strip()]
    return "\n".join(told[-LAST_LINES:])


def submittable(config: TrainerConfig) -> str:
    """Return a configuration as it travels in a submission's environment.

    Raises OperatorError, which no retry mends, when it is too long for that.
    """
    text = config.to_json()
    if len(text.encode()) > names.MAX_CONFIG_BYTES:
        raise PermanentError(
            f"the configuration has {len(text)} bytes, more than {names.MAX_CONFIG_BYTES}: "
            "shorten templates or file lists"
        )
    return text


def _explain(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code} {answer.text[:300]}"
