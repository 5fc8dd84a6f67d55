"""How much device memory tensors held at most since the measurement began."""

import torch


class PeakMemory:
    """`PeakMemory(device)` begins; a CPU's memory is not counted."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def peak_bytes(self) -> int | None:
        """Return the bytes that torch had handed out at the most; None on a CPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device)
