"""The driver's handle to an engine that receives weights; see `weights.transfer`."""

from collections.abc import Mapping
from typing import Any

from raggrpo_trainer.host.pod_processes import PodProcess


class EngineReceiver:
    """A `Receiver` that calls the engine's actor with the attempt's epoch."""

    def __init__(
        self, engine: Any, process: PodProcess, *, num_devices: int, epoch: int, sleeps: bool
    ) -> None:
        self.process = process
        self.num_devices = num_devices
        self._engine = engine
        self._epoch = epoch
        self._sleeps = sleeps

    async def wake(self) -> None:
        """Wake the engine; without sleep mode, only check that the engine responds."""
        await self._engine.wake.remote(self._epoch)

    async def load_file(self, version: int, handle: str, data: Any) -> None:
        """Wake the engine if it sleeps and load a weights file."""
        if self._sleeps:
            await self.wake()
        await self._engine.load_weights.remote(self._epoch, version, handle, data)

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        """Pause generation and prepare for chunks."""
        await self._engine.start_update.remote(self._epoch, init_info)

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Load one chunk."""
        await self._engine.load_chunk.remote(self._epoch, chunk)

    async def finish_update(self, version: int) -> None:
        """Apply the loaded chunks and resume generation."""
        await self._engine.finish_update.remote(self._epoch, version)
