"""An engine's side of a weight transfer in vLLM's worker process, which imports this module."""

from typing import Any

import torch
from safetensors import safe_open


class WorkerExtension:
    """A mixin of vLLM's worker, set as `worker_extension_cls`."""

    def load_weights_file(self: Any, path: str) -> None:
        """Load every tensor of a safetensors file with Hugging Face names.

        Reloads layer by layer: vLLM's CPU build packs weights after loading them, so a plain load
        into a running engine fails.
        """
        with safe_open(path, "pt", device="cpu") as file:
            # Open the file first: if it is unreadable, this fails before the model changes.
            tensors = ((name, file.get_tensor(name)) for name in list(file.keys()))
            self.reload_weights(weights_iterator=tensors)
        if self.device.type == "cpu":
            _repack_tied_lm_head(self.model_runner.model)
            _repack_experts(self.model_runner.model)


def _repack_tied_lm_head(model: torch.nn.Module) -> None:
    """Repack a tied LM head: it owns no tensor, so the reload keeps its old packed weights."""
    module: Any
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            module.quant_method.process_weights_after_loading(module)


def _repack_experts(model: torch.nn.Module) -> None:
    """Repack mixtures of experts: vLLM's CPU build packs them only at the first load."""
    module: Any
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(module)
