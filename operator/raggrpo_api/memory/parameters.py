"""Numbers of trained parameters, and what follows from them: checkpoint sizes and FLOPs.

Without adapters, all parameters of the model are trained; with adapters, only theirs.
"""

from typing import Final

from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.trainer.preflight import Facts

CHECKPOINT_BYTES_PER_PARAMETER: Final = 12
"""Bytes of a trained parameter and AdamW's two moments in fp32."""


def adapter_parameters(training: TrainingSpec, facts: Facts) -> int:
    """Return the number of parameters of the adapters: rank · Σ(inputs + outputs); 0 without."""
    return facts.adapter_parameters_per_rank * training.lora.rank if training.lora else 0


def trained_parameters(training: TrainingSpec, facts: Facts) -> int:
    """Return the number of parameters that the optimizer updates."""
    return adapter_parameters(training, facts) if training.lora else facts.parameters


def checkpoint_bytes(training: TrainingSpec, facts: Facts) -> int:
    """Return the size of a checkpoint: trained parameters and their moments."""
    return CHECKPOINT_BYTES_PER_PARAMETER * trained_parameters(training, facts)


def flops_per_position(parameters: int, trained: int) -> int:
    """Return the FLOPs of a training pass per token position, without attention.

    Forward pass and gradients of activations take 2 FLOPs per parameter each, gradients of
    parameters 2 per trained one (Kaplan et al. 2020, section 2.1): 6 in full training, 4 with a
    frozen model. Merging adapters into the weights is not counted.
    """
    return 4 * parameters + 2 * trained
