"""Weights through /dev/shm: rank 0 writes a file, engines on its node read it in place.

Engines on other nodes get the bytes through Ray's object store and write their own file.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from raggrpo_api.memory.arithmetic import KEPT_WEIGHT_FILES

from .transfer import SenderLost

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path("/dev/shm")


class SharedMemorySender:
    """A `WeightSender`; all ranks gather, only rank 0 writes.

    A file loses its name once it is written and is reached through the rank's descriptor: what a
    killed rank had sent is gone with it.
    """

    def __init__(self, job: str, rank: int, folder: Path = FOLDER) -> None:
        self._rank, self._folder, self._prefix = rank, folder, f"{job}-weights"
        self._written: list[BinaryIO] = []
        for left in folder.glob(f"{self._prefix}-*"):
            left.unlink(missing_ok=True)  # a rank was killed while it wrote

    def send(self, version: int, weights: Iterable[tuple[str, "Tensor"]]) -> str:
        """Write a file and return its path; "" on every rank but the first."""
        if self._rank != 0:
            for _ in weights:  # every rank takes part in gathering each tensor
                pass
            return ""
        from safetensors.torch import save_file

        while len(self._written) >= KEPT_WEIGHT_FILES:
            self._written.pop(0).close()
        path = self._folder / f"{self._prefix}-{os.getpid()}-{version}.safetensors"
        save_file(dict(weights), path)  # it gives the user alone the file
        file = path.open("rb")
        path.unlink()
        self._written.append(file)
        return _path_of(file)

    def data(self, handle: str) -> Any:
        """Return the file as an array of bytes, which Ray shares without copying."""
        import numpy as np

        return np.fromfile(handle, dtype=np.uint8)

    def close(self) -> None:
        """Free the files."""
        while self._written:
            self._written.pop().close()


class SharedMemoryReceiver:
    """A `WeightReceiver`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @asynccontextmanager
    async def received(self, handle: str, data: Any) -> AsyncIterator[str]:
        """Yield the sender's file, or a temporary one on this node that holds `data`."""
        if data is None:
            with _opened(handle) as file:
                yield _path_of(file)
            return
        local = self._folder / f"raggrpo-engine-{os.getpid()}.safetensors"
        local.touch(mode=0o600)  # the machine's users share the folder
        await asyncio.to_thread(local.write_bytes, memoryview(data))
        try:
            yield str(local)
        finally:
            await asyncio.to_thread(local.unlink)


def _path_of(file: BinaryIO) -> str:
    """Return a path that leads to an open file without a name, also for other processes."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _opened(handle: str) -> BinaryIO:
    try:
        return open(handle, "rb")
    except FileNotFoundError as error:
        raise SenderLost(handle) from error
