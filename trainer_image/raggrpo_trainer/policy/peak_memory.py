"""Peak device memory of tensors and of torch's allocator."""

import torch


class PeakMemory:
    """Peak device memory since construction; CPU memory is not measured."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def peak_bytes(self) -> int | None:
        """Return the maximum of the bytes allocated by torch, or None on a CPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device)

    def reserved_bytes(self) -> int | None:
        """Return the maximum of the bytes reserved by torch's allocator, or None on a CPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_reserved(self._device)
