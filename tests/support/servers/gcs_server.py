"""An emulator of Google Cloud Storage in a separate process, with objects in memory."""

import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx

from support.processes.ports import free_port
from support.processes.waiting import wait_for


class GcsServer:
    """Context manager that runs the server with one empty bucket."""

    bucket = "models"

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        command = [
            sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory",
            "--host", "127.0.0.1", "--port", str(self._port), "--default-bucket", self.bucket,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._responds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def env(self) -> Mapping[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.url}

    def add(self, name: str, content: bytes) -> None:
        url = f"{self.url}/upload/storage/v1/b/{self.bucket}/o"
        query = {"uploadType": "media", "name": name}
        httpx.post(url, params=query, content=content).raise_for_status()

    def read(self, name: str) -> bytes:
        url = f"{self.url}/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}"
        return httpx.get(url, params={"alt": "media"}).raise_for_status().content

    def _responds(self) -> bool:
        assert self._process.poll() is None, "the emulator exited"
        try:
            return httpx.get(f"{self.url}/storage/v1/b/{self.bucket}").status_code == 200
        except httpx.TransportError:
            return False
