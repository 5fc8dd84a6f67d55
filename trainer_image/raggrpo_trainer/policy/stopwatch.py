"""Times the parts of a step without stalling the GPU. Must not decide what is measured."""

import time
from collections import defaultdict
from typing import Any

import torch


class Stopwatch:
    """Charges the time since the last mark to a named part."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = [("", self._now())]

    def mark(self, part: str) -> None:
        """Charge the time since the last mark to `part`; repeated parts add up."""
        self._marks.append((part, self._now()))

    def seconds(self) -> dict[str, float]:
        """Return each part's seconds. On a GPU this waits for the work marked so far."""
        if self._on_gpu:
            torch.cuda.synchronize()
        found: dict[str, float] = defaultdict(float)
        for (_, before), (part, after) in zip(self._marks, self._marks[1:], strict=False):
            found[part] += before.elapsed_time(after) / 1000 if self._on_gpu else after - before
        return dict(found)

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
