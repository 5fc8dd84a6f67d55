"""A server in a separate process."""

import ssl
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from support.processes.ports import free_port
from support.processes.waiting import wait_for

from .private_authority import Certificate

READY_SECONDS = 30.0


class ServerProcess(ABC):
    """Context manager that runs a server, of HTTPS with a certificate; `stop` stops it early."""

    ready_path: str
    """Path that the server responds to once it is ready."""
    ready_statuses: tuple[int, ...] = (200,)

    def __init__(self, certificate: Certificate | None = None) -> None:
        self._certificate = certificate
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"{'https' if certificate else 'http'}://{self.host}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command of the server."""

    def start(self) -> None:
        """Start the server, and wait until it is ready."""
        authority = self._certificate and self._certificate.authority
        trusted = ssl.create_default_context(cafile=authority)
        self.http = httpx.Client(verify=trusted, trust_env=False)
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._is_ready, READY_SECONDS)

    def stop(self) -> None:
        """Kill the server."""
        self.http.close()
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, f"{type(self).__name__} exited"
        try:
            response = self.http.get(f"{self.url}{self.ready_path}")
        except httpx.TransportError:
            return False
        return response.status_code in self.ready_statuses
