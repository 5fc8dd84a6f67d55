"""What a power cut may leave of a folder: a file system that loses what was not synced.

A file keeps the content, and a folder the entries, that it had when it was last synced. Entries may
also have reached the disk on their own, as journals let them: then they name files without content.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("fsync", "rename", "replace", "link", "unlink", "rmdir", "mkdir")
"""Calls of the operating system before each of which `at_every_cut` looks."""


class PowerLoss:
    """Watches a folder, whose present state counts as synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._folders: set[int] = set()
        self._held: list[int] = []
        for parent, _, files in os.walk(root):
            self._note(Path(parent))
            for name in files:
                self._note(Path(parent, name))

    def watch(self, patch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
        """From now on note every sync, and call `before` ahead of every change of the disk."""
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
                    self._note(Path(os.readlink(f"/proc/self/fd/{args[0]}")))
                return real(*args, **options)

            patch.setattr(os, name, call)

    def leave(self, into: Path, *, newest_entries: bool) -> None:
        """Write what a cut right now leaves; `newest_entries` if unsynced ones reached the disk."""
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

    def _note(self, path: Path) -> None:
        inode = self._hold(path)
        if not path.is_dir():
            self._contents[inode] = path.read_bytes()
            return
        self._folders.add(inode)
        self._entries[inode] = {e.name: self._hold(Path(e.path)) for e in os.scandir(path)}
        self._folders |= {e.inode() for e in os.scandir(path) if e.is_dir()}

    def _hold(self, path: Path) -> int:
        """Keep the number from being given to another file once this one is deleted."""
        self._held.append(os.open(path, os.O_RDONLY))
        return os.fstat(self._held[-1]).st_ino

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._held:
            os.close(descriptor)
