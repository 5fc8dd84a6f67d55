"""`InstallationKeys`: the keys, current and previous, from which Ray cluster tokens are derived.

The token of a Ray cluster does not change after the cluster is created, so key rotation does not
affect running jobs.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raggrpo_operator.core.manifests.token_secret import job_token
from raggrpo_operator.errors import TransientError

from .settings import SettingsError

CURRENT, PREVIOUS = "current", "previous"
"""File names in the mounted Secret; PREVIOUS is optional."""
MIN_KEY_BYTES = 16


@dataclass(frozen=True, slots=True, repr=False)
class InstallationKeys:
    """Installation keys by id."""

    current_id: str
    by_id: Mapping[str, bytes]

    def token(self, key_id: str, job_uid: str) -> str:
        """Return a job's token. Raises TransientError if the key with this id is not mounted."""
        if key_id not in self.by_id:
            raise TransientError(
                f"installation key {key_id} of the Ray cluster is not mounted: "
                f"keep the old key as {PREVIOUS!r} in the Secret until its jobs have ended"
            )
        return job_token(self.by_id[key_id], job_uid)


def read_keys(folder: Path) -> InstallationKeys:
    """Return the mounted keys. Raises SettingsError if the current key is missing or too short."""
    current = _read(folder / CURRENT)
    if len(current) < MIN_KEY_BYTES:
        raise SettingsError(
            f"{folder / CURRENT}: no key of at least {MIN_KEY_BYTES} bytes; "
            f"set {CURRENT!r} in the Secret to a random value"
        )
    keys = {key_id(key): key for key in (_read(folder / PREVIOUS), current) if key}
    return InstallationKeys(key_id(current), keys)


def key_id(key: bytes) -> str:
    """Return an id of the key that does not reveal the key."""
    return hashlib.sha256(b"raggrpo key id" + key).hexdigest()[:8]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes().strip()
    except FileNotFoundError:
        return b""
