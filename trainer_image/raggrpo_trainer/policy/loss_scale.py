"""Dynamic loss scaling for FP16 (Micikevicius et al., arXiv 1710.03740, with torch's GradScaler).

The smallest positive FP16 number is 6e-8. Smaller gradients vanish, so the loss is multiplied by a
scale before the backward pass, and the gradients are divided by the scale afterwards. If gradients
or loss exceed FP16's range, the update is skipped and the scale is halved.
"""

import math
from typing import Any

import torch
from torch import Tensor

from raggrpo_api.spec.training import Precision

MIN_SCALE = 1.0
"""At this scale or below, non-finite values are not caused by scaling."""


class LossScale:
    """The loss scale; equal on all ranks, because torch reduces overflows over all ranks."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        # torch's defaults: start at 2^16, and double after 2000 updates without an overflow.
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision is Precision.FP16)

    @property
    def value(self) -> float:
        """Current scale; 1 without scaling."""
        return float(self._scaler.get_scale())

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss multiplied by the scale, for the backward pass."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale and record overflows (collective)."""
        self._scaler.unscale_(optimizer)

    def is_overflow(self, loss: float, grad_norm: float) -> bool:
        """Return whether an update is not finite because of the scale, and has to be skipped."""
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        return self._scaler.is_enabled() and not is_finite and self.value > MIN_SCALE

    def update(self, *, is_overflow: bool) -> None:
        """Halve the scale after an overflow; double it after 2000 updates without an overflow.

        torch lowers the scale only for gradients that are not finite, but the loss may overflow
        while all gradients are finite or absent.
        """
        if not self._scaler.is_enabled():
            return
        before = self.value
        self._scaler.update()
        if is_overflow and self.value >= before:
            lower = before * self._scaler.get_backoff_factor()
            state = self._scaler.state_dict()
            self._scaler.load_state_dict(state | {"scale": lower, "_growth_tracker": 0})

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the number of updates since its last change; {} without scaling."""
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved scale; do nothing for the {} of a checkpoint with another precision."""
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)
