"""An emulator of Google Cloud Storage in a separate process, with objects in memory."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import httpx

from .server_process import ServerProcess


class GcsServer(ServerProcess):
    """The server, with one empty bucket."""

    bucket = "models"
    ready_path = f"/storage/v1/b/{bucket}"

    def command(self) -> Sequence[str | Path]:
        return [
            sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory",
            "--host", "127.0.0.1", "--port", str(self.port), "--default-bucket", self.bucket,
        ]  # fmt: skip

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
