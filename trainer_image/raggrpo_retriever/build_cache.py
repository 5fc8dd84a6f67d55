"""A cache of folders by key; each folder is complete or absent. Must not depend on their content.

    root/<key>/            a complete folder; COMPLETE is written last
    root/<key>.building/   partial results of unfinished builds, reused by the next build

Processes may build the same key concurrently. The first process to finish publishes its folder by
a rename, which cannot replace a non-empty folder; the other processes then use this folder.
"""

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from raggrpo_api.foreign_files import UnsuitableFile, read_json, remove_folder

COMPLETE = "COMPLETE"
MAX_MARKER_BYTES = 2**20
Build = Callable[[Path, Path], None]
"""Function (folder, partial) that fills `folder`; `partial` keeps results between builds."""


def get_or_build(root: Path, key: str, build: Build) -> Path:
    """Return the complete folder `root/key`; build it if necessary. Raises OSError."""
    target = root / key
    workspace = root / f"{key}.building"
    for folder in (target, workspace):
        if folder.is_symlink():
            raise UnsuitableFile(f"{folder.name} is a link, which is not followed; remove it")
    if is_complete(target):
        return target
    partial = workspace / "parts"
    draft = workspace / uuid.uuid4().hex
    try:
        partial.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        build(draft, partial)
        _mark_complete(draft)
        _publish(draft, target)
    except FileNotFoundError:
        if not is_complete(target):  # else: another build finished and removed the workspace
            raise
    remove_folder(workspace, ignore_errors=True)
    return target


def is_complete(folder: Path) -> bool:
    """Return whether all files exist with the sizes recorded in COMPLETE."""
    try:
        sizes = read_json(folder / COMPLETE, MAX_MARKER_BYTES)
        return all(_has_size(folder, name, size) for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _has_size(folder: Path, name: str, size: object) -> bool:
    file = folder / Path(name).name
    is_own = file.name == name and file.is_file() and not file.is_symlink()
    return is_own and file.stat().st_size == size


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with the path of a draft, sync the draft to disk and rename it to `path`."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    write(draft)
    _sync(draft)
    draft.replace(path)


def _mark_complete(folder: Path) -> None:
    files = [file for file in folder.iterdir() if file.is_file()]
    for file in files:
        _sync(file)
    marker = folder / COMPLETE
    marker.write_text(json.dumps({file.name: file.stat().st_size for file in files}))
    _sync(marker)
    _sync(folder)


def _publish(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        if is_complete(target):
            return  # another process has published the same content
        # The folder is damaged, because only complete folders are published: move it away.
        target.rename(draft.with_name(f"{draft.name}.damaged"))
        draft.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
