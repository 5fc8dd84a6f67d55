"""Fencing: one writer per checkpoint folder, by claims and heartbeats.

    <path>/fence/00000003          the claim of epoch 3: job, attempt, host, process
    <path>/fence/00000003.accepts  valid checkpoints of older epochs
    <path>/fence/00000003.beat     heartbeat: the host's clock, updated while the holder is alive

Every attempt claims the next epoch. If an older attempt completes a checkpoint after that claim,
for example because its process was suspended, the checkpoint is not in any accepts list, so no
later attempt uses it. Must not change checkpoints or compare clocks of different hosts: a heartbeat
is only checked for changes.
"""

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, TypeVar

from pydantic import TypeAdapter

from raggrpo_api.foreign_files import UnsuitableFile, read_limited
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .folder import CheckpointName, Validity, is_complete, parse_json, sync, write_atomically

log = logging.getLogger(__name__)

_T = TypeVar("_T")

BEAT_SECONDS = 5.0
"""Heartbeat interval."""
WATCHED_BEATS = 2.5
"""Number of heartbeat intervals without a change after which another job is considered dead."""
MAX_BYTES = 2**20
"""Size limit of a claim or an accepts list."""
_CLAIM = re.compile(r"[0-9]{8,18}")


@dataclass(frozen=True, slots=True)
class Claim:
    """The holder of an epoch."""

    job_uid: str
    job_name: str
    attempt: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"job {self.job_name} (attempt {self.attempt} on {self.host}, pid {self.pid})"


_CLAIMS, _ACCEPTED = TypeAdapter(Claim), TypeAdapter(frozenset[str])


class Fence:
    """A claim on a checkpoint folder, from `claim` to `release`."""

    validity: Validity
    """The valid checkpoints, as recorded by `claim`."""

    def __init__(self, path: Path, epoch: int, claim: Claim, beat_seconds: float) -> None:
        self.path = path
        self.epoch = epoch
        self.own_claim = claim
        self._beat_seconds = beat_seconds
        self._beat_error: OSError | None = None
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="fence-beat", daemon=True)

    @classmethod
    def claim(
        cls,
        path: Path,
        job_uid: str,
        job_name: str,
        attempt: int,
        *,
        beat_seconds: float = BEAT_SECONDS,
    ) -> Self:
        """Claim the next epoch of the folder and record the valid checkpoints.

        If the newest claim belongs to another job, its heartbeat is watched first, for up to
        WATCHED_BEATS intervals. Raises TrainerError: CHECKPOINT_PATH_IN_USE if that job is alive,
        CHECKPOINT_WRITE_FAILED if the folder cannot be written.
        """
        claim = Claim(job_uid, job_name, attempt, socket.gethostname(), os.getpid())
        try:
            (path / "fence").mkdir(parents=True, exist_ok=True)
            if (path / "fence").is_symlink():
                raise UnsuitableFile(f"{path}/fence is a link")
            epoch = _claim_epoch(path, claim, beat_seconds)
            fence = cls(path, epoch, claim, beat_seconds)
            fence._record_valid_checkpoints()
        except OSError as error:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"cannot claim the checkpoint folder {path}: {error}; make it "
                "writable, or set checkpoint.path to another folder",
            ) from error
        fence._thread.start()
        log.info("claimed epoch %d of checkpoint folder %s for %s", epoch, path, claim)
        return fence

    def check(self) -> None:
        """Check that this attempt still holds the folder.

        Raises TrainerError: SUPERSEDED if a later attempt of this job has claimed it,
        CHECKPOINT_PATH_IN_USE if another job has, CHECKPOINT_WRITE_FAILED if the claim was deleted
        or the heartbeat cannot be written.
        """
        epochs = _epochs(self.path)
        newest = max(epochs, default=0)
        if newest > self.epoch:
            holder = _read_claim(self.path, newest)
            if holder.job_uid == self.own_claim.job_uid:
                raise TrainerError(
                    ExitCode.SUPERSEDED,
                    f"the checkpoint folder {self.path} was claimed by {holder} (epoch {newest})",
                )
            raise _in_use(self.path, holder)
        if self.epoch not in epochs:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"the claim {_claim_path(self.path, self.epoch)} was deleted: the checkpoint "
                "folder was emptied or unmounted while the job was running",
            )
        if self._beat_error is not None:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"cannot write the heartbeat in {self.path}/fence: {self._beat_error}",
            )

    def release(self) -> None:
        """Stop the heartbeat, so that another job can claim the folder at once."""
        self._released.set()  # stop the heartbeats before deleting their file
        _beat_path(self.path, self.epoch).unlink(missing_ok=True)

    def _record_valid_checkpoints(self) -> None:
        """Write the accepts list: the checkpoints that are valid at the time of the claim."""
        previous = validity(self.path)
        accepted = {str(name) for name in _complete(self.path) if previous.covers(name)}
        write_atomically(_accepts_path(self.path, self.epoch), json.dumps(sorted(accepted)))
        self.validity = Validity(self.epoch, frozenset(accepted))

    def _keep_beating(self) -> None:
        while not self._released.wait(self._beat_seconds):
            try:
                _write_beat(_beat_path(self.path, self.epoch))
                self._beat_error = None
            except OSError as error:
                self._beat_error = error  # check() raises it unless the next heartbeat succeeds


def validity(path: Path) -> Validity:
    """Return the checkpoints that the next claim would accept; does not claim the folder.

    Without an accepts list (a new folder, or copied checkpoints), all complete checkpoints are
    valid. Raises TrainerError CHECKPOINT_WRITE_FAILED if the list is damaged.
    """
    epochs = sorted(_epochs(path), reverse=True)
    for epoch in epochs:
        try:
            accepted = _read(_accepts_path(path, epoch), _ACCEPTED)
        except FileNotFoundError:
            continue
        return Validity(epoch, accepted)
    return Validity(0, frozenset(map(str, _complete(path))))


def live_job(path: Path, job_uid: str, *, beat_seconds: float = BEAT_SECONDS) -> str | None:
    """Return the name of another live job that uses the folder, or None.

    Watches the other job's heartbeat for up to WATCHED_BEATS intervals.
    """
    holder = _live_other(path, max(_epochs(path), default=0), job_uid, beat_seconds)
    return None if holder is None else holder.job_name


def _claim_epoch(path: Path, claim: Claim, beat_seconds: float) -> int:
    """Create the claim of the next epoch; after a lost race, check the winner and retry."""
    draft = path / "fence" / f"{uuid.uuid4().hex}.tmp"
    draft.write_text(json.dumps(asdict(claim)))
    sync(draft)  # if a power cut left an empty claim, all later attempts would fail
    newest = max(_epochs(path), default=0)
    try:
        while True:
            holder = _live_other(path, newest, claim.job_uid, beat_seconds)
            if holder is not None:
                raise _in_use(path, holder)
            # Copied checkpoints may have higher epochs than any claim.
            epoch = 1 + max([newest, *(name.epoch for name in CheckpointName.all_in(path))])
            if not _CLAIM.fullmatch(_claim_path(path, epoch).name):
                raise UnsuitableFile(f"{path} has a claim or a checkpoint of epoch {epoch - 1}")
            # Write the heartbeat first: a claim without one counts as released.
            with contextlib.suppress(FileExistsError), _beat_path(path, epoch).open("xb") as file:
                file.write(_now())
            try:
                os.link(draft, _claim_path(path, epoch))  # atomic; fails if the claim exists
            except FileExistsError:
                newest = epoch
                continue
            return epoch
    finally:
        draft.unlink()


def _live_other(path: Path, epoch: int, job_uid: str, beat_seconds: float) -> Claim | None:
    """Return the claim of an epoch if it belongs to another live job, else None."""
    if epoch == 0:
        return None
    holder = _read_claim(path, epoch)
    beat = _beat(path, epoch)
    if holder.job_uid == job_uid or beat is None:
        return None
    deadline = time.monotonic() + WATCHED_BEATS * beat_seconds
    while time.monotonic() < deadline:
        time.sleep(beat_seconds / 10)
        now = _beat(path, epoch)
        if now is None:
            return None
        if now != beat:
            return holder
    return None


def _in_use(path: Path, holder: Claim) -> TrainerError:
    return TrainerError(
        ExitCode.CHECKPOINT_PATH_IN_USE,
        f"the checkpoint folder {path} is in use by {holder}; delete or suspend that job, or set "
        "checkpoint.path to another folder",
    )


def _epochs(path: Path) -> set[int]:
    folder = path / "fence"
    if not folder.is_dir():
        return set()
    names = set(os.listdir(folder))
    epochs = (int(name) for name in names if _CLAIM.fullmatch(name))
    return {epoch for epoch in epochs if _claim_path(path, epoch).name in names}


def _complete(path: Path) -> Iterator[CheckpointName]:
    for name in CheckpointName.all_in(path):
        if is_complete(path / str(name)):
            yield name


def _read_claim(path: Path, epoch: int) -> Claim:
    return _read(_claim_path(path, epoch), _CLAIMS)


def _read(path: Path, adapter: TypeAdapter[_T]) -> _T:
    """Return the content of a JSON file. Raises OSError, or TrainerError if it is damaged."""
    try:
        return parse_json(adapter, read_limited(path, MAX_BYTES))
    except (UnsuitableFile, ValueError) as error:
        raise TrainerError(
            ExitCode.CHECKPOINT_WRITE_FAILED,
            f"{path} is damaged: {error}; restore it, or set checkpoint.path to an empty folder",
        ) from error


def _claim_path(path: Path, epoch: int) -> Path:
    return path / "fence" / f"{epoch:08d}"


def _accepts_path(path: Path, epoch: int) -> Path:
    return _claim_path(path, epoch).with_suffix(".accepts")


def _beat_path(path: Path, epoch: int) -> Path:
    return _claim_path(path, epoch).with_suffix(".beat")


def _beat(path: Path, epoch: int) -> bytes | None:
    try:
        return read_limited(_beat_path(path, epoch), MAX_BYTES)
    except FileNotFoundError:
        return None


def _write_beat(path: Path) -> None:
    """Overwrite the heartbeat in place, which needs no new block and works on a full disk."""
    with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "wb") as file:
        file.write(_now())


def _now() -> bytes:
    return b"%020d" % time.monotonic_ns()
