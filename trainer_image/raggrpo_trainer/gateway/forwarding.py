"""Send calls of models that are not trained to their endpoints."""

from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp

from raggrpo_api.fields.http_access import bearer
from raggrpo_api.secrets.redaction import display_url
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.diagnosis import DOWN_STATUSES, UNREACHABLE, cause_and_detail
from raggrpo_trainer.http.pool import HttpPool, proxy_for
from raggrpo_trainer.http.service_gate import OutageListener, ServiceGate

from .model_names import Endpoint

PROBE_PATH: Final = "models"


class Forwarder:
    """Sends calls to endpoints; calls wait while their endpoint is down."""

    def __init__(self, endpoints: Sequence[Endpoint] = (), outages: OutageListener | None = None):
        """Without `outages`, calls to endpoints that are down fail."""
        self.endpoints = endpoints
        self._http = HttpPool()
        self._tasks = BackgroundTasks()
        self._gates: Mapping[Endpoint, ServiceGate] = {}
        if outages is not None:
            self._gates = {each: self._gate(each, outages) for each in endpoints}

    async def send(self, endpoint: Endpoint, path: str, body: bytes) -> aiohttp.ClientResponse:
        """Return the response to a call, which the caller must close. Raises CallFailed."""
        gate = self._gates.get(endpoint)
        while True:
            if gate is not None:
                await gate.wait_until_up()
            try:
                response = await self._open("POST", endpoint, path, body)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                failure = CallFailed(*cause_and_detail(error))
                is_down = failure.cause in UNREACHABLE
            else:
                if response.status not in DOWN_STATUSES:
                    if gate is not None:
                        gate.record_response()
                    return response
                response.close()
                failure = CallFailed(FailureCause.HTTP_STATUS, str(response.status))
                is_down = True
            if gate is None or not is_down or not await gate.wait_if_down(str(failure)):
                raise failure

    async def close(self) -> None:
        """Close all connections."""
        await self._tasks.close()
        await self._http.close()

    def _gate(self, endpoint: Endpoint, outages: OutageListener) -> ServiceGate:
        async def probe() -> bool:
            try:
                response = await self._open("GET", endpoint, PROBE_PATH)
            except (aiohttp.ClientError, OSError):
                return False
            response.close()
            return response.status not in DOWN_STATUSES

        name = f"endpoint {display_url(endpoint.url)} (rollout.agent.forward)"
        return ServiceGate(name, probe, outages, self._tasks)

    async def _open(
        self, method: str, endpoint: Endpoint, path: str, body: bytes | None = None
    ) -> aiohttp.ClientResponse:
        headers = {} if body is None else {"Content-Type": "application/json"}
        if key := endpoint.api_key.strip():  # a Secret created from a file ends with a newline
            headers["Authorization"] = bearer(key)
        url = f"{endpoint.url.rstrip('/')}/{path}"
        return await self._http.open(method, url, body, headers, proxy_for(url))
