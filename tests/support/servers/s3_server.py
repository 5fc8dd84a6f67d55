"""An S3 server (moto) in a separate process, with objects in memory."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import boto3
import httpx

from .server_process import ServerProcess

KEY = "only-in-the-environment"


class S3Server(ServerProcess):
    """The server, with one empty bucket."""

    bucket = "runs"
    ready_path = "/moto-api/"

    @property
    def env(self) -> Mapping[str, str]:
        """Return the client's environment: endpoint and credentials."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": "raggrpo",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def require_signatures(self) -> Mapping[str, str]:
        """Reject requests without a valid signature from now on; return a user's environment."""
        iam = self.client("iam")
        iam.create_user(UserName="trainer")
        statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=policy)
        key = iam.create_access_key(UserName="trainer")["AccessKey"]
        httpx.post(f"{self.url}/moto-api/reset-auth", content="0").raise_for_status()
        return {
            **self.env,
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def start(self) -> None:
        """Start the server with an empty bucket; objects of an earlier start are lost."""
        super().start()
        self.client().create_bucket(Bucket=self.bucket)

    def objects(self) -> list[str]:
        response = self.client().list_objects_v2(Bucket=self.bucket)
        return [each["Key"] for each in response.get("Contents", [])]

    def client(self, service: str = "s3") -> "boto3.client":
        """Return a new client."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
