"""Dynamic loss scaling for FP16 (Micikevicius et al., arXiv 1710.03740, with torch's GradScaler).

FP16's smallest number is 6e-8: gradients below it vanish, so the loss is multiplied by a scale
before its backward pass and the gradients are divided by it. Gradients that then exceed FP16's
range make the update be skipped and the scale be halved. Must not know the model.
"""

import math
from typing import Any

import torch
from torch import Tensor

from raggrpo_api.spec.training import Precision

LEAST_SCALE = 1.0
"""What is not finite at this scale or below is no matter of scaling."""


class LossScale:
    """The scale of one rank; all ranks hold the same, because torch reduces what it finds."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        # It begins at 2^16 and doubles after 2000 updates without an overflow: torch's defaults.
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision is Precision.FP16)

    @property
    def value(self) -> float:
        """The current scale; 1 without scaling."""
        return float(self._scaler.get_scale())

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to begin the backward pass from."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale and note whether one is not finite (collective)."""
        self._scaler.unscale_(optimizer)

    def is_overflow(self, loss: float, grad_norm: float) -> bool:
        """Return whether an update that is not finite is one to be skipped."""
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        return self._scaler.is_enabled() and not is_finite and self.value > LEAST_SCALE

    def update(self) -> None:
        """Halve the scale after an overflow, double it after many updates without."""
        if self._scaler.is_enabled():
            self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the updates since it last changed; empty without scaling."""
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved scale; a checkpoint of another precision has none."""
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)
