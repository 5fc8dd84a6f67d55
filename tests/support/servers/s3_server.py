"""An S3 server (moto) in a separate process, with objects in memory."""

import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import boto3
import httpx

from support.processes.ports import free_port

READY_SECONDS = 30.0
KEY = "only-in-the-environment"


class S3Server:
    """Context manager that runs the server with one empty bucket; `stop` stops it early."""

    bucket = "runs"

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

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

    @property
    def env(self) -> Mapping[str, str]:
        """Return the client's environment: endpoint and credentials."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": "raggrpo",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start the server with an empty bucket."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            assert self._process.poll() is None, "the S3 server exited"
            assert time.monotonic() < deadline, "the S3 server does not respond"
            time.sleep(0.05)
        self.client().create_bucket(Bucket=self.bucket)

    def stop(self) -> None:
        """Stop the server; its objects are lost."""
        self._process.kill()
        self._process.wait()

    def objects(self) -> list[str]:
        response = self.client().list_objects_v2(Bucket=self.bucket)
        return [each["Key"] for each in response.get("Contents", [])]

    def client(self) -> "boto3.client":
        """Return a new client."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/moto-api/", timeout=5).status_code < 500
        except httpx.TransportError:
            return False
