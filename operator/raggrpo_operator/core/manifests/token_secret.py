"""The token of a job's Ray cluster, derived from the installation key.

The operator may create Secrets but not read them, so it derives the token again for each use.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass

from raggrpo_api import names
from raggrpo_api.job import Metadata

from .metadata import Manifest, child_metadata

TOKEN_KEY = "auth_token"
"""Key in the Secret that KubeRay reads."""
NAME_DIGITS = 16
"""Hexadecimal digits in the name of the Secret: 64 bits, which cannot be guessed."""


@dataclass(frozen=True, slots=True)
class TokenRef:
    """Where the token of a Ray cluster is, and from which key it was derived."""

    secret: str
    """Name of the Secret."""
    key_id: str


def job_token(installation_key: bytes, job_uid: str) -> str:
    """Return the token of the job: HMAC-SHA256 of its uid, in hexadecimal."""
    return hmac.new(installation_key, job_uid.encode(), hashlib.sha256).hexdigest()


def secret_name(installation_key: bytes, job: Metadata) -> str:
    """Return the name of the Secret, which cannot be guessed without the installation key.

    Therefore, an existing Secret of this name was created by the operator for this job.
    """
    text = f"name of the token's Secret of {job.uid}"  # not the uid, whose digest is the token
    digest = hmac.new(installation_key, text.encode(), hashlib.sha256).hexdigest()
    return names.token_secret_name(job.name, digest[:NAME_DIGITS])


def render_token_secret(job: Metadata, *, name: str, token: str) -> Manifest:
    """Return the immutable Secret that `authOptions.secretName` refers to."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": child_metadata(job, name),
        "immutable": True,
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
