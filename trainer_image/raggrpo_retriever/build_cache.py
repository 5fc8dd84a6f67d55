"""A folder that is built once and then kept: whole or not there. Knows nothing of what is in it.

    root/<key>/            what was built; COMPLETE is its last file
    root/<key>.building/   what unfinished builds left, for the next one to go on from

Processes that build the same at the same time do each other no harm: the first to finish
publishes by a rename, which cannot replace a folder that holds files, and the others take that.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

COMPLETE = "COMPLETE"
Build = Callable[[Path, Path], None]
"""(folder to fill, folder for what an interrupted build leaves to the next)."""


def kept(root: Path, key: str, build: Build) -> Path:
    """Return the complete folder `root/key`, building it unless it is there. Raises OSError."""
    target, workshop = root / key, root / f"{key}.building"
    if is_complete(target):
        return target
    parts, own = workshop / "parts", workshop / uuid.uuid4().hex
    try:
        parts.mkdir(parents=True, exist_ok=True)
        own.mkdir()
        build(own, parts)
        _complete(own)
        _publish(own, target)
    except FileNotFoundError:
        if not is_complete(target):  # else another process has published and cleared up
            raise
    shutil.rmtree(workshop, ignore_errors=True)
    return target


def is_complete(folder: Path) -> bool:
    """Return whether every file is there in the size that COMPLETE tells."""
    try:
        sizes = json.loads((folder / COMPLETE).read_bytes())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file that appears under its name only when it is on the disk."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    write(unfinished)
    _sync(unfinished)
    unfinished.replace(path)


def _complete(folder: Path) -> None:
    files = [file for file in folder.iterdir() if file.is_file()]
    for file in files:
        _sync(file)
    marker = folder / COMPLETE
    marker.write_text(json.dumps({file.name: file.stat().st_size for file in files}))
    _sync(marker)
    _sync(folder)


def _publish(own: Path, target: Path) -> None:
    try:
        own.rename(target)
    except OSError:
        if is_complete(target):
            return  # another process was first; what it built is the same
        # Damaged, for we publish complete folders only: out of the way, then once more.
        target.rename(own.with_name(f"{own.name}.damaged"))
        own.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
