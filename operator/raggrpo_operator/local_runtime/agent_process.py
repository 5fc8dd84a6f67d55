"""The container of an agent in a local run: its command as a child process on loopback."""

import asyncio
import os
from pathlib import Path

from raggrpo_api import names
from raggrpo_operator.core.lifecycle.actions import StartAgent
from raggrpo_operator.core.lifecycle.before_attempt.services import AGENT
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.http_api import HttpApi, open_session

from .processes import Child, Processes, exit_text, free_ports
from .secret_values import with_variables

HEALTH_SECONDS = 2.0


class AgentProcess:
    """The command of an agent; all attempts of a run share the address of its gateway."""

    def __init__(self, processes: Processes, logs: Path) -> None:
        self._processes = processes
        self._logs = logs
        self._gateway_url = ""
        self._running: tuple[StartAgent, Child] | None = None

    def gateway_env(self) -> dict[str, str]:
        """Return the variable with the gateway's URL for drivers; {} without a command."""
        return {names.ENV_GATEWAY_URL: self._gateway_url} if self._gateway_url else {}

    def start(self, action: StartAgent) -> None:
        """Start the command unless it is running with this spec."""
        if self._running is not None:
            old, child = self._running
            if child.exit_code() is None and old.spec_hash == action.spec_hash:
                return
            self._processes.terminate(child)
        self._gateway_url = self._gateway_url or f"http://127.0.0.1:{free_ports(1)[0]}/v1"
        gateway = dict.fromkeys(names.GATEWAY_ENV, self._gateway_url) | {
            "OPENAI_API_KEY": names.NO_API_KEY
        }
        own = action.container
        env = with_variables(own.env, os.environ) | gateway
        words = [*own.command, *own.args]
        child = self._processes.start(AGENT, words, env, self._logs / "agent.log")
        self._running = action, child

    async def observe(self) -> ServiceObserved | None:
        """Return the state of the command, or None if it was not started."""
        if self._running is None:
            return None
        action, child = self._running
        own = action.container
        address = f"http://127.0.0.1:{own.port}"
        if (code := child.exit_code()) is not None:
            problem = f"exited with {exit_text(code)}: {child.log_tail(3)}"
            return ServiceObserved(
                AGENT, address, problem=problem, has_ended=True, spec_hash=action.spec_hash
            )
        problem = await _problem(address, own.port, own.health_path)
        return ServiceObserved(
            AGENT, address, is_ready=not problem, problem=problem, spec_hash=action.spec_hash
        )

    def stop(self) -> None:
        """Terminate the command."""
        if self._running is not None:
            self._processes.terminate(self._running[1])
            self._running = None


async def _problem(address: str, port: int, health_path: str) -> str:
    """Return why the application is not ready, or ""."""
    try:
        if health_path:
            async with open_session() as session:
                api = HttpApi(session, address)
                response = await api.call("GET", health_path, seconds=HEALTH_SECONDS)
            return "" if response.status == 200 else response.excerpt or f"{response.status}"
        async with asyncio.timeout(HEALTH_SECONDS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
    except (OperatorError, OSError):
        return "starting"
    return ""
