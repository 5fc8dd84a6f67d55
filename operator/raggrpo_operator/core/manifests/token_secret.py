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


def job_token(installation_key: bytes, job_uid: str) -> str:
    """Return the job's token: HMAC-SHA256 of its uid, in hexadecimal."""
    return hmac.new(installation_key, job_uid.encode(), hashlib.sha256).hexdigest()


def render_token_secret(job: Metadata, *, key_id: str, token: str) -> Manifest:
    """Return the immutable Secret that `authOptions.secretName` refers to."""
    name = names.token_secret_name(job.name, key_id, job.uid)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": child_metadata(job, name),
        "immutable": True,
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
