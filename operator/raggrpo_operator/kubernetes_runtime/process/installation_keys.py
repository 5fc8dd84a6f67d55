"""`InstallationKeys`: the keys from which Ray cluster tokens are derived, current and previous.

The token of a Ray cluster does not change after the cluster is created, so key rotation does not
affect running jobs. Kubernetes updates the mounted files when the Secret changes, so they are read
again for each new Ray cluster, each check and each unknown key. Keys that were read once are
retained in memory.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from raggrpo_operator.core.manifests.token_secret import job_token
from raggrpo_operator.errors import KeyMissing, KeyNotMounted

log = logging.getLogger(__name__)

CURRENT, PREVIOUS = "current", "previous"
"""File names in the mounted Secret; PREVIOUS is optional."""
MIN_KEY_BYTES = 16
SYNC_REMARK = "Kubernetes mounts a changed Secret within about two minutes; no restart is needed"


@dataclass(frozen=True, slots=True, repr=False)
class MountedKeys:
    """The keys in the mounted Secret by id; `current_id` is "" if the current key is unusable."""

    current_id: str
    by_id: Mapping[str, bytes]


class InstallationKeys:
    """All keys that have been mounted since this process started. `secret` is for messages."""

    def __init__(self, read: Callable[[], MountedKeys], secret: str) -> None:
        self._read, self._secret = read, secret
        self._known: dict[str, bytes] = {}
        self._reported = ""

    def current(self) -> tuple[str, bytes]:
        """Return id and value of the key for new Ray clusters. Raises KeyMissing."""
        mounted = self._refresh()
        if not mounted.current_id:
            raise KeyMissing(
                f"Secret {self._secret} is missing, or has no {CURRENT!r} of at least "
                f"{MIN_KEY_BYTES} bytes: restore it; {SYNC_REMARK}"
            )
        return mounted.current_id, mounted.by_id[mounted.current_id]

    def token(self, key_id: str, job_uid: str) -> str:
        """Return a job's token. Raises KeyMissing if the key with this id was never mounted."""
        if key_id not in self._known:
            self._refresh()
        if key_id not in self._known:
            raise KeyMissing(
                f"installation key {key_id} of the Ray cluster is not in Secret {self._secret}: "
                f"add the old key as {PREVIOUS!r} until its jobs have ended; {SYNC_REMARK}"
            )
        return job_token(self._known[key_id], job_uid)

    def check_mounted(self, key_id: str) -> None:
        """Raise KeyNotMounted if a known key is no longer in the Secret."""
        if key_id in self._known and key_id not in self._refresh().by_id:
            raise KeyNotMounted(
                f"installation key {key_id} of the Ray cluster was removed from Secret "
                f"{self._secret}; the operator has it in memory until it restarts: add the old key "
                f"as {PREVIOUS!r} until its jobs have ended, or the Ray cluster will be replaced"
            )

    @property
    def has_current(self) -> bool:
        """Whether new Ray clusters can be created."""
        return bool(self._refresh().current_id)

    def _refresh(self) -> MountedKeys:
        mounted = self._read()
        self._known |= mounted.by_id
        if mounted.current_id != self._reported:
            log.log(
                logging.INFO if mounted.current_id else logging.ERROR,
                "the current installation key in Secret %s is %s",
                self._secret,
                mounted.current_id or "missing or too short",
            )
            self._reported = mounted.current_id
        return mounted


def read_keys(folder: Path) -> MountedKeys:
    """Return the keys mounted in a folder."""
    current = _read(folder / CURRENT)
    is_usable = len(current) >= MIN_KEY_BYTES
    keys = {key_id(key): key for key in (_read(folder / PREVIOUS), current) if key}
    return MountedKeys(key_id(current) if is_usable else "", keys)


def key_id(key: bytes) -> str:
    """Return an id of the key that does not reveal the key."""
    return hashlib.sha256(b"raggrpo key id" + key).hexdigest()[:8]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes().strip()
    except FileNotFoundError:
        return b""
