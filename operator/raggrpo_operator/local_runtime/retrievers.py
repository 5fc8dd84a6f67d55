"""Managed retrievers of a local run as child processes.

They listen on loopback, which other users of the machine can reach; therefore they require a token.
"""

import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from raggrpo_api import names
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_api.status.cause import Cause
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from raggrpo_operator.core.spec.retriever_command import retriever_arguments
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.http_api import HttpApi, open_session

from .processes import Child, Processes, exit_text, free_ports

HEALTH_SECONDS = 2.0


@dataclass(slots=True)
class _Retriever:
    child: Child
    port: int


class Retrievers:
    """The managed retrievers of a job."""

    def __init__(self, processes: Processes, logs: Path) -> None:
        self._processes = processes
        self._logs = logs
        self._token = secrets.token_hex(32)
        self._running: dict[str, _Retriever] = {}

    def token_env(self) -> dict[str, str]:
        """Return the variable that passes the token to retrievers and drivers."""
        return {names.ENV_RETRIEVER_TOKEN: self._token}

    def start(self, name: str, managed: ManagedRetriever) -> None:
        """Start the retriever of an endpoint unless it is running."""
        old = self._running.get(name)
        if old is not None and old.child.exit_code() is None:
            return
        # A restarted retriever keeps its port, which a running trainer uses.
        port = old.port if old is not None else free_ports(1)[0]
        log_file = self._logs / f"retriever-{name}.log"
        env = {**os.environ, **self.token_env()}
        child = self._processes.start(f"retriever-{name}", command(managed, port), env, log_file)
        self._running[name] = _Retriever(child, port)

    async def observe(self) -> tuple[ServiceObserved, ...]:
        """Return the state of each retriever."""
        return tuple([await _observe(name, retriever) for name, retriever in self._running.items()])

    def stop(self) -> None:
        """Terminate all retrievers."""
        for retriever in self._running.values():
            self._processes.terminate(retriever.child)
        self._running.clear()


def command(managed: ManagedRetriever, port: int) -> list[str]:
    """Return the command line of a retriever."""
    words = [sys.executable, "-m", "raggrpo_retriever", *retriever_arguments(managed)]
    return [*words, "--host", "127.0.0.1", "--port", str(port)]


async def _observe(name: str, retriever: _Retriever) -> ServiceObserved:
    address = f"http://127.0.0.1:{retriever.port}"
    code = retriever.child.exit_code()
    if code is not None:
        cause = Cause.DATA_ERROR if code == ExitCode.DATA_ERROR else None
        problem = f"exited with {exit_text(code)}: {retriever.child.log_tail(3)}"
        return ServiceObserved(name, address, problem=problem, has_ended=True, cause=cause)
    try:
        async with open_session() as session:
            api = HttpApi(session, address)
            response = await api.call("GET", "/healthz", seconds=HEALTH_SECONDS)
    except OperatorError:
        return ServiceObserved(name, address, problem="starting")
    is_ready = response.status == 200
    problem = "" if is_ready else response.excerpt
    return ServiceObserved(name, address, is_ready=is_ready, problem=problem)
