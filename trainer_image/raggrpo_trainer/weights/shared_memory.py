"""Both sides of the SharedMemory backend: rank 0 writes a file in /dev/shm, engines read it.

Engines on other nodes get the content through Ray's object store and write it to a local file.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from raggrpo_api.memory.arithmetic import MAX_WEIGHT_FILES

from .transfer import RankLost

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path("/dev/shm")


class SharedMemorySender:
    """A rank's side: all ranks gather the tensors, rank 0 writes them.

    A file is unlinked once written and stays reachable through the rank's open descriptor, so its
    memory is freed even if the rank is killed.
    """

    def __init__(self, job: str, rank: int, folder: Path = FOLDER) -> None:
        self._rank = rank
        self._folder = folder
        self._prefix = f"{job}-weights"
        self._files: list[BinaryIO] = []
        for leftover in folder.glob(f"{self._prefix}-*"):
            leftover.unlink(missing_ok=True)  # left by a rank that was killed during a write

    def send(self, version: int, weights: Iterable[tuple[str, "Tensor"]]) -> str:
        """Write the weights to a file; return its path, or "" on ranks other than 0 (collective).

        Frees the oldest file if there would be more than MAX_WEIGHT_FILES.
        """
        if self._rank != 0:
            for _ in weights:  # every rank takes part in gathering each tensor
                pass
            return ""
        from safetensors.torch import save_file

        while len(self._files) >= MAX_WEIGHT_FILES:
            self._files.pop(0).close()
        path = self._folder / f"{self._prefix}-{os.getpid()}-{version}.safetensors"
        save_file(dict(weights), path)  # creates the file with mode 0600
        file = path.open("rb")
        path.unlink()
        self._files.append(file)
        return _descriptor_path(file)

    def data(self, handle: str) -> Any:
        """Return the content as an array of uint8, which Ray shares without copying."""
        import numpy as np

        return np.fromfile(handle, dtype=np.uint8)

    def close(self) -> None:
        """Free all files."""
        while self._files:
            self._files.pop().close()


class SharedMemoryReceiver:
    """An engine's side: provides the path of a local weights file."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @asynccontextmanager
    async def received(self, handle: str, data: Any) -> AsyncIterator[str]:
        """Yield the path of the weights: of the rank's file, or of a temporary file with `data`.

        Raises RankLost if the rank's file no longer exists.
        """
        if data is None:
            with _open(handle) as file:
                yield _descriptor_path(file)
            return
        with await asyncio.to_thread(self._copy, data) as file:
            yield _descriptor_path(file)

    def _copy(self, data: Any) -> BinaryIO:
        """Write a file that is unlinked already, so that it does not outlive a killed engine."""
        path = self._folder / f"raggrpo-engine-{os.getpid()}.safetensors"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)  # other users of the machine can list the folder
        file = path.open("r+b")
        path.unlink()
        file.write(memoryview(data))
        file.flush()
        return file


def _descriptor_path(file: BinaryIO) -> str:
    """Return a path through which other processes can open an unlinked file."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _open(handle: str) -> BinaryIO:
    try:
        return open(handle, "rb")
    except FileNotFoundError as error:
        raise RankLost(handle) from error
