"""Where the gateway of an agent listens."""

from typing import Any, cast

import pytest

from raggrpo_api.names import ENV_GATEWAY_URL
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_trainer.driver.agents import _start_gateway
from raggrpo_trainer.gateway.gateway import Gateway

IN_CLUSTER = "http://job-gateway-1.research.svc:8091/v1"
ON_MACHINE = "http://127.0.0.1:43210/v1"
LOOPBACK_URL = "http://127.0.0.1:5555/v1"


class RecordingGateway:
    def __init__(self) -> None:
        self.started: tuple[str | None, int] | None = None

    async def start(self, host: str | None, port: int = 0) -> str:
        self.started = host, port
        return LOOPBACK_URL


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    ("kind", "variable", "listens", "url"),
    [
        ("Container", IN_CLUSTER, (None, 8091), IN_CLUSTER),
        ("Http", IN_CLUSTER, (None, 8091), IN_CLUSTER),
        ("Container", ON_MACHINE, ("127.0.0.1", 43210), ON_MACHINE),
        ("Http", "", ("127.0.0.1", 0), LOOPBACK_URL),
        ("Python", IN_CLUSTER, ("127.0.0.1", 0), LOOPBACK_URL),
    ],
)
async def test_gateway_listens_where_application_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    variable: str,
    listens: tuple[str | None, int],
    url: str,
) -> None:
    monkeypatch.setenv(ENV_GATEWAY_URL, variable)
    agent, gateway = AgentSpec.model_validate({"type": kind}), RecordingGateway()

    assert await _start_gateway(cast(Gateway, cast(Any, gateway)), agent) == url
    assert gateway.started == listens
