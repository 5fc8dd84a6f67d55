"""`Engine`: the common interface of vLLM's engines on CPU and GPU. Must not import Ray.

A completion depends only on prompt, weights and the request's seed. Weights may be loaded while
requests run: sampled tokens keep the logprobs of the policy that sampled them.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from .generation import Generation, GenerationRequest


class Engine(Protocol):
    """A vLLM engine in the process of its actor."""

    def start(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        """Queue requests together, in this order; each awaitable returns one completion."""
        ...

    async def load_weights(self, path: str, version: int) -> None:
        """Load a safetensors file and clear the prefix cache."""
        ...

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        """Pause generation and prepare for tensor chunks, see `weights.receiver`."""
        ...

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Load one tensor chunk."""
        ...

    async def finish_update(self, version: int) -> None:
        """Apply the loaded chunks, clear the prefix cache and resume generation."""
        ...

    async def abort_all(self) -> None:
        """Abort all running requests. Raises EngineDead if the engine is dead."""
        ...

    async def sleep(self) -> None:
        """Free GPU memory for the training of colocated ranks; does nothing on CPU."""
        ...

    async def wake(self) -> None:
        """Reallocate the GPU memory freed by `sleep`; load weights before the next request."""
        ...
