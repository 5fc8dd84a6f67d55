"""The decoder layers of a model, which are the units of sharding."""

from torch import nn
from transformers import PreTrainedModel


def decoder_layers(causal_lm: PreTrainedModel) -> list[nn.Module]:
    """Return the outermost modules of the classes that the model lists in `_no_split_modules`."""
    names = set(causal_lm._no_split_modules or ())
    layers: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in causal_lm.modules():  # parents come before children
        if type(module).__name__ in names and module not in inside:
            layers.append(module)
            inside.update(module.modules())
    return layers
