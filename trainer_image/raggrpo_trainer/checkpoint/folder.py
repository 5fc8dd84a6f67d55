"""Layout of checkpoint folders, and discovery of usable checkpoints. Must not delete files.

    <path>/step_00000100.e3/   shards of torch.distributed.checkpoint
                               meta.json   step, data cursor, settings, metrics
                               COMPLETE    written last: epoch, attempt, sizes and digests
                               REJECTED    only if the checkpoint must not be used: the reason

A folder without COMPLETE is not a checkpoint.
"""

import hashlib
import hmac
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from raggrpo_api.file_names import checked_parts
from raggrpo_api.foreign_files import read_limited
from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_api.trainer.progress import CheckpointRef, Segment, SkippedCheckpoint
from raggrpo_trainer.data.sampler import Cursor

from .file_digests import StoredFile, check_digests, check_sizes, seal_of

COMPLETE = "COMPLETE"
META = "meta.json"
REJECTED = "REJECTED"
_RESERVED = frozenset({COMPLETE, REJECTED})
MAX_MARKER_BYTES = 2**20
MAX_META_BYTES = 4 * 2**20
MAX_REASON_BYTES = 2**16
_NAME = re.compile(r"step_([0-9]{8,18})\.e([0-9]{1,18})")

_T = TypeVar("_T")
Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """A checkpoint's name: its step and its writer's fencing epoch. Names sort from old to new."""

    step: int
    epoch: int

    def __str__(self) -> str:
        return f"step_{self.step:08d}.e{self.epoch}"

    @classmethod
    def all_in(cls, path: Path) -> list[Self]:
        """Return all names in a checkpoint path, complete or not, newest first."""
        return cls.among(os.listdir(path) if path.is_dir() else [])

    @classmethod
    def among(cls, folders: Iterable[str]) -> list[Self]:
        """Return the checkpoint names among these folder names, newest first."""
        matches = filter(None, map(_NAME.fullmatch, folders))
        names = ((cls(int(m[1]), int(m[2])), m[0]) for m in matches)
        return sorted((name for name, folder in names if str(name) == folder), reverse=True)


@dataclass(frozen=True, slots=True)
class Meta:
    """The state that a resume needs besides model and optimizer, and the checkpoint's settings."""

    step: Count
    cursor: Cursor
    """Position in the training data."""
    world_size: Count
    """Number of ranks that wrote the shards."""
    resume_hash: str
    """Hash of the settings a checkpoint depends on; compared before loading."""
    resume_values: Mapping[str, Any]
    """Settings that `resume_hash` covers, by field path; used to report differences."""
    metrics: Mapping[str, float]
    segments: tuple[Segment, ...] = ()
    """Segments up to this step, oldest first."""
    model_path: str = ""
    """Folder of the initial model, whose architecture and tokenizer an export needs."""

    def to_json(self) -> str:
        """Return the content of META."""
        return json.dumps(_META.dump_python(self, mode="json"), indent=1)


@dataclass(frozen=True, slots=True)
class Marker:
    """Content of COMPLETE."""

    step: Count
    epoch: Count
    attempt: Count
    world_size: Count
    config_hash: str
    time: str
    """Time of the save, in RFC 3339 format."""
    score: FiniteFloat | None
    """Score that determines the best checkpoint (larger is better), or None if not scored."""
    files: Mapping[str, StoredFile]
    """Size and digest by path inside the folder."""
    scored_by: str = BestBy.REWARD
    """Metric of the score; only scores of the same metric are compared."""
    seal: str = ""
    """HMAC of the other fields with the checkpoint key; "" if the job has none."""

    @property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(file.size for file in self.files.values())

    def to_json(self, key: str) -> str:
        """Return the content of COMPLETE, sealed with the key unless it is empty."""
        return _marker_json(replace(self, seal=seal_of(key, self._sealed()) if key else ""))

    def is_sealed_with(self, key: str) -> bool:
        """Return whether a holder of the key wrote exactly these fields."""
        return hmac.compare_digest(self.seal.encode(), seal_of(key, self._sealed()).encode())

    def _sealed(self) -> bytes:
        return _marker_json(replace(self, seal="")).encode()


def _marker_json(marker: Marker) -> str:
    return json.dumps(_MARKER.dump_python(marker, mode="json"), sort_keys=True)


_META, _MARKER = TypeAdapter(Meta), TypeAdapter(Marker)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    folder: Path
    marker: Marker
    meta: Meta

    @property
    def name(self) -> CheckpointName:
        """Return the checkpoint's name: step and epoch."""
        return CheckpointName(self.marker.step, self.marker.epoch)

    @property
    def size(self) -> int:
        """Return the checkpoint's size in bytes."""
        return self.marker.size

    @property
    def score(self) -> float:
        """Return the score, or -inf if the checkpoint has no score."""
        return -math.inf if self.marker.score is None else self.marker.score

    def verify(self) -> None:
        """Compare all files with their digests; call it before the shards are parsed.

        Reads every file once. Raises ValueError if one is missing or differs, and OSError if one
        cannot be read.
        """
        try:
            check_digests(self.folder, self.marker.files)
        except ValueError as error:
            raise ValueError(f"{self.folder} is damaged: {error}") from error

    def ref(self) -> CheckpointRef:
        """Return a reference to this checkpoint for Progress."""
        marker = self.marker
        return CheckpointRef(
            step=marker.step, path=str(self.folder), time=marker.time, world_size=marker.world_size
        )


@dataclass(frozen=True, slots=True)
class Validity:
    """The valid complete checkpoints: all of `epoch`, and the older ones named in `accepted`."""

    epoch: int
    accepted: frozenset[str]

    def covers(self, name: CheckpointName) -> bool:
        """Return whether a complete checkpoint with this name is valid."""
        return name.epoch == self.epoch or str(name) in self.accepted


def discover(path: Path, validity: Validity) -> tuple[list[Checkpoint], list[SkippedCheckpoint]]:
    """Return the usable checkpoints, newest first, and the unusable ones with their reasons.

    Of the incomplete ones, only those newer than all usable ones are returned.
    """
    usable: list[Checkpoint] = []
    skipped: list[SkippedCheckpoint] = []
    for name in CheckpointName.all_in(path):
        folder = path / str(name)
        if usable and not is_complete(folder):
            continue
        checkpoint = _read(folder, name, validity)
        if isinstance(checkpoint, Checkpoint):
            usable.append(checkpoint)
        else:
            skipped.append(SkippedCheckpoint(path=str(folder), reason=checkpoint))
    return usable, skipped


def is_complete(folder: Path) -> bool:
    """Return whether the save was completed; later damage is not checked."""
    return (folder / COMPLETE).is_file()


def write_marker(folder: Path, marker: Marker, key: str = "") -> None:
    """Write COMPLETE, sealed with the key, after all other files were flushed to disk."""
    sync_tree(folder)
    write_atomically(folder / COMPLETE, marker.to_json(key))
    sync(folder.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write a file that exists completely or not at all, even after a power cut."""
    draft = path.with_name(f"{path.name}.tmp")
    draft.unlink(missing_ok=True)  # left by a killed process, or a link to another folder
    with draft.open("x") as file:
        file.write(text)
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def parse_marker(text: bytes, name: CheckpointName) -> Marker:
    """Return the content of a checkpoint's COMPLETE file. Raises ValueError if it is invalid."""
    marker = parse_json(_MARKER, text)
    if CheckpointName(marker.step, marker.epoch) != name:
        raise ValueError(f"it contains step {marker.step}, epoch {marker.epoch} instead of {name}")
    _check_names(marker.files)
    return marker


def parse_json(adapter: TypeAdapter[_T], text: bytes) -> _T:
    """Return the value of a JSON text. Raises ValueError with the first problem."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))[:100]
        message = f"{place}: {problem['msg']}" if place else problem["msg"]
        raise ValueError(message.encode("unicode_escape").decode()) from error


def _check_names(files: Iterable[str]) -> None:
    folders: set[str] = set()
    for file in files:
        parts = checked_parts(file)
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    if clashes := folders.intersection(files) | _RESERVED.intersection(folders.union(files)):
        raise ValueError(f"{', '.join(sorted(clashes))} cannot be one of the files")


def sync_tree(folder: Path) -> None:
    """Flush all files and folders in the tree to disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(Path(parent, name))
        sync(Path(parent))


def _read(folder: Path, name: CheckpointName, validity: Validity) -> Checkpoint | str:
    """Return the checkpoint, or the reason why it cannot be used."""
    if not is_complete(folder):
        return f"{COMPLETE} is missing: the save is incomplete, or the file was deleted"
    if not validity.covers(name):
        return f"was completed after epoch {name.epoch} was superseded, or was copied to this path"
    try:
        return _read_complete(folder, name)
    except (OSError, ValueError) as error:
        return _line(error)


def _read_complete(folder: Path, name: CheckpointName) -> Checkpoint:
    """Read COMPLETE and META. Raises OSError or ValueError if the checkpoint cannot be used."""
    if os.path.lexists(folder / REJECTED):
        reason = read_limited(folder / REJECTED, MAX_REASON_BYTES)
        raise ValueError(f"rejected: {reason.decode(errors='replace')}")
    with _explained(f"{COMPLETE} is unreadable"):
        marker = parse_marker(read_limited(folder / COMPLETE, MAX_MARKER_BYTES), name)
    check_sizes(folder, marker.files)
    with _explained(f"{META} is unreadable"):
        return Checkpoint(folder, marker, _read_meta(folder, marker))


def _read_meta(folder: Path, marker: Marker) -> Meta:
    if META not in marker.files:
        raise ValueError(f"{COMPLETE} does not list it")
    content = read_limited(folder / META, MAX_META_BYTES)
    if hashlib.sha256(content).hexdigest() != marker.files[META].sha256:
        raise ValueError("it differs from its SHA-256")
    meta = parse_json(_META, content)
    if meta.step != marker.step:
        raise ValueError(f"it contains step {meta.step} instead of {marker.step}")
    return meta


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"{problem}: {error}") from error


def _line(error: Exception) -> str:
    text = "".join(each if each.isprintable() else " " for each in str(error))
    return " ".join(text.split())[:200]


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
