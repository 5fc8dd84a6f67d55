"""`spec.training`: length of the run, optimiser, precision and schedule."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from raggrpo_api.fields.base import ApiModel

MAX_STEPS: Final = 10_000_000


class Precision(StrEnum):
    """Arithmetic of trainer and engine: a single field, so that they cannot conflict."""

    AUTO = "Auto"
    """On a GPU BF16, or FP16 where it has none; on CPU whichever of BF16 and FP32 a short
    measurement at start-up finds faster."""
    BF16 = "BF16"
    FP16 = "FP16"
    """With dynamic loss scaling, for GPUs without BF16 (V100, T4): what others call 16-mixed."""
    FP32 = "FP32"


class RowLayout(StrEnum):
    """How prompts and completions are laid out as rows of the training forward pass."""

    SHARED_PREFIX = "SharedPrefix"
    """One row per prompt with all its completions: computes the prompt once, with exact results."""
    PADDED = "Padded"
    """One row per completion."""


class LearningRateSchedule(StrEnum):
    """How the learning rate goes on after the warm-up, as a function of the step alone."""

    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"
    """Half a period of a cosine, without restarts."""


class TrainingSpec(ApiModel):
    """The optimisation."""

    total_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    """Steps of the whole job; raising it continues a finished one. 0: given by epochs."""
    epochs: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Passes over the data instead of totalSteps; 0: not used."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Every random choice is keyed by (seed, step, prompt, sample)."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-6
    """Peak learning rate of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Steps of linear warm-up."""
    learning_rate_schedule: LearningRateSchedule = LearningRateSchedule.CONSTANT
    """After the warm-up: stays at learningRate, or falls to its floor by decaySteps."""
    decay_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    """Last step of Linear's and Cosine's fall; 0: totalSteps, which then cannot change."""
    min_learning_rate_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Where Linear and Cosine end, as a share of learningRate."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Gradients are clipped to this global norm."""
    mini_batch_prompts: Annotated[int, Field(ge=0, le=65536)] = 0
    """Prompts per optimiser step; divides trainBatchSize. 0: the whole batch, one update."""
    precision: Precision = Precision.BF16
    """Arithmetic of trainer and engine."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, slower."""
    load_in_turns: bool = False
    """Ranks of a pod read the model one after the other: host memory for one copy, slower start."""
    compile: bool = False
    """torch.compile the layers, with dynamic shapes."""
    row_layout: RowLayout = RowLayout.SHARED_PREFIX
    """Rows of the training forward; left out, preflight takes Padded where the model needs it."""
    tokens_per_micro_batch: Annotated[int, Field(ge=1, le=100_000_000)] = 16384
    """Token budget of one forward and backward pass on one rank."""
    off_policy_steps: Annotated[int, Field(ge=0, le=1)] = 0
    """1: the next rollouts start before the step ends; needs Disaggregated placement."""
