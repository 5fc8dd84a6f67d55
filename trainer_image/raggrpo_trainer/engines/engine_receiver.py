"""An engine as the receiver of weights, on the driver's side; see `weights.transfer`."""

from collections.abc import Mapping
from typing import Any

from raggrpo_trainer.host.pod_processes import PodProcess


class EngineReceiver:
    """A `Receiver`: calls the engine's actor, whose epoch it carries."""

    def __init__(
        self, engine: Any, process: PodProcess, *, num_devices: int, epoch: int, sleeps: bool
    ) -> None:
        self.process, self.num_devices = process, num_devices
        self._engine, self._epoch, self._sleeps = engine, epoch, sleeps

    async def wake(self) -> None:
        """Wake; an engine that does not sleep only answers."""
        await self._engine.wake.remote(self._epoch)

    async def load_file(self, version: int, handle: str, data: Any) -> None:
        """Wake and load the file."""
        if self._sleeps:
            await self.wake()
        await self._engine.load_weights.remote(self._epoch, version, handle, data)

    async def begin(self, way: Mapping[str, Any] | None) -> None:
        """Expect parts."""
        await self._engine.begin_update.remote(self._epoch, way)

    async def read(self, part: Mapping[str, Any]) -> None:
        """Read a part."""
        await self._engine.read_part.remote(self._epoch, part)

    async def finish(self, version: int) -> None:
        """Use what was read."""
        await self._engine.finish_update.remote(self._epoch, version)
