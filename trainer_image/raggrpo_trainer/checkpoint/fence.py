"""One writer per checkpoint folder: claims, heartbeats and detecting that we were superseded.

    <path>/fence/00000003          the claim of epoch 3: job, attempt, host, process
    <path>/fence/00000003.accepts  checkpoints of older epochs that still count
    <path>/fence/00000003.beat     its host's clock, read again and again while the holder is alive

Every attempt claims the next epoch. A checkpoint that an older attempt finishes later, say after
having been frozen, is in no accepts list, so no successor ever reads it. Must not touch
checkpoints or compare clocks of different hosts: of a beat it matters only that it changes.
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
from typing import Self

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .folder import CheckpointName, Validity, is_complete, sync, write_atomically

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
BEATS_WATCHED = 2.5
"""Beat intervals without a beat after which another job is considered dead."""
_CLAIM = re.compile(r"\d{8,}")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who holds an epoch."""

    job_uid: str
    job_name: str
    attempt: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"job {self.job_name} (attempt {self.attempt} on {self.host}, pid {self.pid})"


class Fence:
    """A claim on a checkpoint folder, acquired by `claim` and held until `release`."""

    validity: Validity
    """Which checkpoints count, as `claim` recorded it."""

    def __init__(self, path: Path, epoch: int, claim: Claim, beat_seconds: float) -> None:
        self.path, self.epoch = path, epoch
        self.holder = claim
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
        """Take over the folder as the next epoch and record which checkpoints count.

        If the newest claim belongs to another job, its heartbeat is watched first, which takes a
        while. Raises TrainerError: CHECKPOINT_PATH_IN_USE if that job is alive,
        CHECKPOINT_WRITE_FAILED if the folder cannot be written.
        """
        claim = Claim(job_uid, job_name, attempt, socket.gethostname(), os.getpid())
        try:
            (path / "fence").mkdir(parents=True, exist_ok=True)
            epoch = _claim_epoch(path, claim, beat_seconds)
            fence = cls(path, epoch, claim, beat_seconds)
            fence._settle()
        except OSError as error:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"cannot claim the checkpoint folder {path}: {error}; make it writable",
            ) from error
        fence._thread.start()
        log.info("holding epoch %d of %s as %s", epoch, path, claim)
        return fence

    def check(self) -> None:
        """Verify that this attempt still holds the folder.

        Raises TrainerError: SUPERSEDED if a later attempt of this job took over,
        CHECKPOINT_PATH_IN_USE if another job did, CHECKPOINT_WRITE_FAILED if the claim is gone or
        the heartbeat cannot be written.
        """
        epochs = _epochs(self.path)
        newest = max(epochs, default=0)
        if newest > self.epoch:
            holder = _read_claim(self.path, newest)
            if holder.job_uid == self.holder.job_uid:
                raise TrainerError(
                    ExitCode.SUPERSEDED, f"epoch {newest} of {self.path} was taken over by {holder}"
                )
            raise _in_use(self.path, holder)
        if self.epoch not in epochs:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"the claim {_claim_path(self.path, self.epoch)} has vanished: was the checkpoint "
                "folder emptied or unmounted while the job ran?",
            )
        if self._beat_error is not None:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"cannot keep the claim on {self.path} alive: {self._beat_error}",
            )

    def release(self) -> None:
        """Stop the heartbeat so that another job can take over the folder at once."""
        self._released.set()  # a beat that is being written now doesn't bring the file back
        _beat_path(self.path, self.epoch).unlink(missing_ok=True)

    def _settle(self) -> None:
        """Record, once and for all, which older checkpoints count from now on."""
        before = validity(self.path)
        accepted = {str(name) for name in _complete(self.path) if before.covers(name)}
        write_atomically(_accepts_path(self.path, self.epoch), json.dumps(sorted(accepted)))
        self.validity = Validity(self.epoch, frozenset(accepted))

    def _keep_beating(self) -> None:
        while not self._released.wait(self._beat_seconds):
            try:
                _write_beat(_beat_path(self.path, self.epoch))
                self._beat_error = None
            except OSError as error:
                self._beat_error = error  # check() raises it unless the next beat succeeds


def validity(path: Path) -> Validity:
    """Return which checkpoints a new claimant would accept; needs no claim.

    Without any accepts list (new folder, or checkpoints copied in) all complete ones count.
    """
    epochs = sorted(_epochs(path), reverse=True)
    for epoch in epochs:
        try:
            accepted = json.loads(_accepts_path(path, epoch).read_bytes())
        except FileNotFoundError:
            continue
        return Validity(epoch, frozenset(accepted))
    return Validity(0, frozenset(map(str, _complete(path))))


def probe(path: Path, job_uid: str, *, beat_seconds: float = BEAT_SECONDS) -> str | None:
    """Return the name of another live job using this folder, or None. May watch for a while."""
    holder = _live_other(path, max(_epochs(path), default=0), job_uid, beat_seconds)
    return None if holder is None else holder.job_name


def _claim_epoch(path: Path, claim: Claim, beat_seconds: float) -> int:
    """Create the next epoch's claim; after losing a race, check the winner and try again."""
    draft = path / "fence" / f"{uuid.uuid4().hex}.tmp"
    draft.write_text(json.dumps(asdict(claim)))
    sync(draft)  # after a power cut an empty claim would stop every later attempt
    newest = max(_epochs(path), default=0)
    try:
        while True:
            holder = _live_other(path, newest, claim.job_uid, beat_seconds)
            if holder is not None:
                raise _in_use(path, holder)
            # Checkpoints copied in may have higher epochs than any claim here.
            epoch = 1 + max([newest, *(name.epoch for name in CheckpointName.all_in(path))])
            # Create the beat before the claim: a claim without a beat has been released.
            with contextlib.suppress(FileExistsError), _beat_path(path, epoch).open("xb") as file:
                file.write(_now())
            try:
                os.link(draft, _claim_path(path, epoch))  # atomic, and fails if the claim exists
            except FileExistsError:
                newest = epoch
                continue
            return epoch
    finally:
        draft.unlink()


def _live_other(path: Path, epoch: int, job_uid: str, beat_seconds: float) -> Claim | None:
    """Return the holder of an epoch if it is another job whose heartbeat advances."""
    if epoch == 0:
        return None
    holder = _read_claim(path, epoch)
    beat = _beat(path, epoch)
    if holder.job_uid == job_uid or beat is None:
        return None
    deadline = time.monotonic() + BEATS_WATCHED * beat_seconds
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
        f"the checkpoint folder {path} is in use by {holder}: delete or suspend that job, or give "
        "this one another checkpoint.path",
    )


def _epochs(path: Path) -> set[int]:
    folder = path / "fence"
    if not folder.is_dir():
        return set()
    return {int(name) for name in os.listdir(folder) if _CLAIM.fullmatch(name)}


def _complete(path: Path) -> Iterator[CheckpointName]:
    for name in CheckpointName.all_in(path):
        if is_complete(path / str(name)):
            yield name


def _read_claim(path: Path, epoch: int) -> Claim:
    return Claim(**json.loads(_claim_path(path, epoch).read_bytes()))


def _claim_path(path: Path, epoch: int) -> Path:
    return path / "fence" / f"{epoch:08d}"


def _accepts_path(path: Path, epoch: int) -> Path:
    return _claim_path(path, epoch).with_suffix(".accepts")


def _beat_path(path: Path, epoch: int) -> Path:
    return _claim_path(path, epoch).with_suffix(".beat")


def _beat(path: Path, epoch: int) -> bytes | None:
    try:
        return _beat_path(path, epoch).read_bytes()
    except FileNotFoundError:
        return None


def _write_beat(path: Path) -> None:
    """Overwrite it in place: this needs no new block, so it works on a full disk."""
    with path.open("r+b") as file:
        file.write(_now())


def _now() -> bytes:
    return b"%020d" % time.monotonic_ns()
