"""An engine's side of a weight transfer, in its actor's process: loads weights into AsyncLLM.

Generation is paused during the update. Running requests keep their sampled tokens and logprobs;
their KV cache is dropped with the cached prefixes and recomputed with the new weights.
"""

import base64
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class VllmReceiver:
    """Loads weights into a running engine and records their version."""

    def __init__(self, engine: "AsyncLLM") -> None:
        self._engine = engine
        self.version = 0
        """Training step that produced the loaded weights."""

    async def load_file(self, path: str, version: int) -> None:
        """Load a safetensors file. If loading fails, generation resumes with the old version."""
        await self._pause()
        try:
            await self._engine.collective_rpc("load_weights_file", args=(path,))
            await self._apply(version)
        finally:
            # Resume also after a failed load: a paused engine would hang forever.
            await self._engine.resume_generation()

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        """Pause generation and prepare for chunks. After a failure the engine stays paused.

        `init_info` has the fields of vLLM's init information for the backend. It is None if the
        engine is already connected to the ranks.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._pause()
        if init_info is not None:
            await self._engine.shutdown_weight_transfer_engine()  # left by a previous driver
            request = WeightTransferInitRequest(dict(init_info))
            await self._engine.init_weight_transfer_engine(request)
        await self._engine.start_weight_update()

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Load a chunk, which has the fields of vLLM's update information and `handles` for IPC."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._engine.update_weights(WeightTransferUpdateRequest(merge_handles(chunk)))

    async def finish_update(self, version: int) -> None:
        """Apply the loaded chunks and resume generation."""
        await self._engine.finish_weight_update()
        await self._apply(version)
        await self._engine.resume_generation()

    async def _pause(self) -> None:
        await self._engine.pause_generation(mode="keep", clear_cache=True)

    async def _apply(self, version: int) -> None:
        await self._engine.reset_prefix_cache(reset_running_requests=True)
        self.version = version


def merge_handles(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chunk with the handles of all ranks merged into one pickled table.

    Raises ValueError if two ranks share a GPU: the memory of one of them would never be freed.
    """
    update_info = {name: value for name, value in chunk.items() if name != "handles"}
    if "handles" not in chunk:
        return update_info
    handles: dict[str, Any] = {}
    for handle in chunk["handles"]:
        handles |= pickle.loads(handle)
    if len(handles) != len(chunk["handles"]):
        raise ValueError(
            f"{len(chunk['handles'])} ranks share {len(handles)} GPUs; each needs its own"
        )
    return update_info | {"ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode()}
