"""AdamW with decoupled weight decay (Loshchilov and Hutter 2019) for matrices only.

Norms' gains and biases are vectors and do not decay, as in transformers: pulling a gain toward 0
does not regularize the layer, it scales its output down. Embeddings are matrices and decay.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import Parameter

from raggrpo_api.spec.training import TrainingSpec


def make_optimizer(parameters: Iterable[Parameter], training: TrainingSpec) -> torch.optim.AdamW:
    """Return the optimizer with its state.

    AdamW creates its state in the first step. If it is missing when a checkpoint is saved before,
    `get_optimizer_state_dict` creates it with an empty step, which increments the step count.
    """
    groups = list(_groups(list(parameters), training.weight_decay))
    optimizer = torch.optim.AdamW(groups, training.learning_rate, fused=True)
    for group in groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


def _groups(parameters: list[Parameter], weight_decay: float) -> Iterator[dict[str, Any]]:
    """Yield the groups of matrices and of vectors, without empty ones."""
    for is_matrix, decay in ((True, weight_decay), (False, 0.0)):
        group = [each for each in parameters if (each.ndim > 1) is is_matrix]
        if group:
            yield {"params": group, "weight_decay": decay}
