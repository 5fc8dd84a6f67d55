"""Peak device memory held by tensors since the measurement began."""

import torch


class PeakMemory:
    """Constructing it starts the measurement; CPU memory is not measured."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def peak_bytes(self) -> int | None:
        """Return the maximum number of bytes allocated by torch; None on a CPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device)
