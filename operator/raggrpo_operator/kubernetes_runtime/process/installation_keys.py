"""`InstallationKeys`: the current and the previous key from which Ray clusters' tokens derive.

A running cluster keeps the key it was created with, so rotating keys does not affect running jobs.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raggrpo_operator.core.manifests.token_secret import job_token
from raggrpo_operator.errors import TransientError

from .settings import SettingsError

CURRENT, PREVIOUS = "current", "previous"
"""Keys in the mounted Secret; the second is optional."""
MIN_KEY_BYTES = 16


@dataclass(frozen=True, slots=True, repr=False)
class InstallationKeys:
    """Installation keys by id."""

    current_id: str
    by_id: Mapping[str, bytes]

    def token(self, key_id: str, job_uid: str) -> str:
        """Return a job's token; raises OperatorError if its key is no longer mounted."""
        if key_id not in self.by_id:
            raise TransientError(
                f"the Ray cluster was made with installation key {key_id}, which is not mounted: "
                f"keep the old key as {PREVIOUS!r} in the key's Secret until its jobs have ended"
            )
        return job_token(self.by_id[key_id], job_uid)


def read_keys(folder: Path) -> InstallationKeys:
    """Return the mounted keys; raises SettingsError if there is no usable one."""
    current = _read(folder / CURRENT)
    if len(current) < MIN_KEY_BYTES:
        raise SettingsError(
            f"{folder / CURRENT} holds no key of at least {MIN_KEY_BYTES} bytes: "
            f"give the key's Secret a random value under {CURRENT!r}"
        )
    keys = {key_id(key): key for key in (_read(folder / PREVIOUS), current) if key}
    return InstallationKeys(key_id(current), keys)


def key_id(key: bytes) -> str:
    """Return an id for the key, from which the key cannot be derived."""
    return hashlib.sha256(b"raggrpo key id" + key).hexdigest()[:8]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes().strip()
    except FileNotFoundError:
        return b""
