"""The token of a job's Ray cluster, derived from the installation's key so it is never read back.

The operator may create Secrets but do nothing else with them.
"""

import base64
import hashlib
import hmac

from raggrpo_api import names
from raggrpo_api.job import Metadata

from .metadata import Manifest, child_metadata

TOKEN_KEY = "auth_token"
"""The key under which KubeRay looks for the token."""
NAME_DIGITS = 16
"""Hexadecimal digits of the Secret's name: 64 bits that cannot be tried out."""


def job_token(installation_key: bytes, job_uid: str) -> str:
    """Return the job's token: HMAC-SHA256 of its uid, in hexadecimal."""
    return hmac.new(installation_key, job_uid.encode(), hashlib.sha256).hexdigest()


def secret_name(installation_key: bytes, job: Metadata) -> str:
    """Return the name of the token's Secret, which nobody without the key can take beforehand.

    So an object of this name that exists is the job's own, from an earlier try.
    """
    named = f"name of the token's Secret of {job.uid}"  # no uid, so the digest is nobody's token
    digest = hmac.new(installation_key, named.encode(), hashlib.sha256).hexdigest()
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
