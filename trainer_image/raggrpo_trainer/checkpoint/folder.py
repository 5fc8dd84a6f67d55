"""Layout of checkpoint folders, and discovery of usable checkpoints. Must not delete files.

    <path>/step_00000100.e3/   shards of torch.distributed.checkpoint
                               meta.json   step, data cursor, settings, metrics
                               COMPLETE    written last: epoch, attempt, all files with their sizes
                               REJECTED    only if the checkpoint must not be used: the reason

A folder without COMPLETE is not a checkpoint.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_api.trainer.progress import CheckpointRef, Segment, SkippedCheckpoint
from raggrpo_trainer.data.sampler import Cursor

from .file_names import path_below

COMPLETE = "COMPLETE"
META = "meta.json"
REJECTED = "REJECTED"
_NAME = re.compile(r"step_(\d{8,})\.e(\d+)")


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
        matches = map(_NAME.fullmatch, folders)
        return sorted((cls(int(m[1]), int(m[2])) for m in matches if m), reverse=True)


@dataclass(frozen=True, slots=True)
class Meta:
    """The state that a resume needs besides model and optimizer, and the checkpoint's settings."""

    step: int
    cursor: Cursor
    """Position in the training data."""
    world_size: int
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

    step: int
    epoch: int
    attempt: int
    world_size: int
    config_hash: str
    time: str
    """Time of the save, in RFC 3339 format."""
    score: float | None
    """Score that determines the best checkpoint (larger is better), or None if not scored."""
    files: Mapping[str, int]
    """Size in bytes by path inside the folder."""
    scored_by: str = BestBy.REWARD
    """Metric of the score; only scores of the same metric are compared."""


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
        return sum(self.marker.files.values())

    @property
    def score(self) -> float:
        """Return the score, or -inf if the checkpoint has no score."""
        return -math.inf if self.marker.score is None else self.marker.score

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


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of all files under the folder, by relative path."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}


def write_marker(folder: Path, marker: Marker) -> None:
    """Write COMPLETE, after all other files were flushed to disk."""
    sync_tree(folder)
    write_atomically(folder / COMPLETE, json.dumps(asdict(marker)))
    sync(folder.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write a file that exists completely or not at all, even after a power cut."""
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(text)
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def parse_marker(text: bytes) -> Marker:
    """Return the content of a COMPLETE file. Raises ValueError if it is invalid."""
    marker = _MARKER.validate_python(json.loads(text))
    for file in marker.files:
        path_below(Path(), file)
    if reserved := {COMPLETE, REJECTED} & marker.files.keys():
        raise ValueError(f"{', '.join(reserved)} cannot be one of the files")
    return marker


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
    rejected = folder / REJECTED
    if rejected.exists():
        return f"rejected: {rejected.read_text()}"
    try:
        marker = parse_marker((folder / COMPLETE).read_bytes())
    except (OSError, ValueError) as error:
        return f"{COMPLETE} is unreadable: {_line(error)}"
    damage = _damage(folder, name, marker)
    if damage:
        return damage
    try:
        meta = _META.validate_python(json.loads((folder / META).read_bytes()))
    except (OSError, ValueError) as error:
        return f"{META} is unreadable: {_line(error)}"
    return Checkpoint(folder, marker, meta)


def _damage(folder: Path, name: CheckpointName, marker: Marker) -> str:
    if CheckpointName(marker.step, marker.epoch) != name:
        return (
            f"{COMPLETE} contains step {marker.step}, epoch {marker.epoch}; the folder name differs"
        )
    sizes = file_sizes(folder)
    for file, size in marker.files.items():
        if file not in sizes:
            return f"{file} is missing"
        if sizes[file] != size:
            return f"{file} has {sizes[file]} bytes instead of {size}"
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
