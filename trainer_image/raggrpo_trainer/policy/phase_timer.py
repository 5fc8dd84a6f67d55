"""Durations of the phases of a step on one rank."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch


class Phase(StrEnum):
    """Phase of a training step. Data transfers to the device are in no phase."""

    FORWARD = "forward"
    """Forward passes, of the reference model too, and the loss."""
    BACKWARD = "backward"
    """Backward passes, including the reduction of gradients over the ranks."""
    OPTIMIZER = "optimizer"
    """Gradient clipping and the update of the parameters."""


class PhaseTimer:
    """Seconds by phase of a step.

    On a GPU, CUDA events measure the device's time, so the host does not wait for each phase.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._spans: list[tuple[Phase, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def measure(self, phase: Phase) -> Iterator[None]:
        """Add the duration of the block to `phase`."""
        if self._is_gpu:
            start = _recorded_event()
            yield
            self._spans.append((phase, start, _recorded_event()))
        else:
            started = time.perf_counter()
            yield
            self._seconds[phase] += time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Return `<phase>_seconds` of all phases. On a GPU, the device must be synchronized."""
        for phase, start, end in self._spans:
            self._seconds[phase] += start.elapsed_time(end) / 1000.0
        self._spans.clear()
        return {f"{phase}_seconds": seconds for phase, seconds in self._seconds.items()}


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
