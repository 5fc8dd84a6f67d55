"""State of a folder after a power loss, on a file system that loses unsynced data.

Files keep the content and folders the entries of their last sync. With a journal, unsynced entries
may have reached the disk as well; then they refer to empty files.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("fsync", "rename", "replace", "link", "unlink", "rmdir", "mkdir")
"""System calls before which a power loss is simulated."""


class PowerLoss:
    """Tracks the synced state of a folder; its initial state counts as synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._folders: set[int] = set()
        self._held: list[int] = []
        for parent, _, files in os.walk(root):
            self._record(Path(parent))
            for name in files:
                self._record(Path(parent, name))

    def watch(self, patch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
        """Record each sync from now on, and call `before` ahead of each disk write."""
        is_looking = False
        for name in CHANGES:
            real = getattr(os, name)

            def call(*args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
                nonlocal is_looking
                if is_looking:
                    return real(*args, **options)
                is_looking = True
                try:
                    before()
                finally:
                    is_looking = False
                if name == "fsync":
                    self._record(Path(os.readlink(f"/proc/self/fd/{args[0]}")))
                return real(*args, **options)

            patch.setattr(os, name, call)

    def leave(self, into: Path, *, newest_entries: bool) -> None:
        """Write the state after a power loss to `into`. `newest_entries` keeps unsynced entries."""
        self._restore(self.root.stat().st_ino, self.root, into, newest_entries)

    def _restore(self, folder: int, now: Path | None, into: Path, newest: bool) -> None:
        into.mkdir(parents=True)
        entries = self._entries.get(folder, {})
        if newest and now is not None:
            entries = {e.name: e.inode() for e in os.scandir(now)}
        for name, inode in entries.items():
            there = now / name if now is not None and (now / name).exists() else None
            if inode in self._folders or (there is not None and there.is_dir()):
                self._restore(inode, there, into / name, newest)
            else:
                (into / name).write_bytes(self._contents.get(inode, b""))

    def _record(self, path: Path) -> None:
        inode = self._hold(path)
        if not path.is_dir():
            self._contents[inode] = path.read_bytes()
            return
        self._folders.add(inode)
        self._entries[inode] = {e.name: self._hold(Path(e.path)) for e in os.scandir(path)}
        self._folders |= {e.inode() for e in os.scandir(path) if e.is_dir()}

    def _hold(self, path: Path) -> int:
        """Keep a file open so that its inode number is not reused after deletion."""
        self._held.append(os.open(path, os.O_RDONLY))
        return os.fstat(self._held[-1]).st_ino

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._held:
            os.close(descriptor)
