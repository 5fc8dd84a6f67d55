"""`spec.training`: number of steps, optimizer, learning rate, precision and batching."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import MODEL, OPERATIONAL, OPTIMIZATION

from .lora import LoraSpec
from .start_from import StartFrom

MAX_STEPS: Final = 10_000_000


class Precision(StrEnum):
    """Data type of forward and backward passes, the same for trainer and engine."""

    AUTO = "Auto"
    """On GPU: BF16, or FP16 if unsupported. On CPU: the faster one of BF16 and FP32, as measured
    at startup."""
    BF16 = "BF16"
    FP16 = "FP16"
    """With dynamic loss scaling (16-mixed), for GPUs without BF16 (V100, T4)."""
    FP32 = "FP32"


class RowLayout(StrEnum):
    """Layout of prompts and completions in the rows of the training forward pass."""

    SHARED_PREFIX = "SharedPrefix"
    """One row per prompt with all its completions, so that the prompt is computed once."""
    PADDED = "Padded"
    """One row per completion."""


class LearningRateSchedule(StrEnum):
    """Learning rate after the warm-up, as a function of the step."""

    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"
    """Half a cosine period, without restarts."""


class TrainingSpec(ApiModel):
    """Number of steps, optimizer, precision and batching."""

    total_steps: Annotated[int, Field(ge=0, le=MAX_STEPS), OPERATIONAL] = 0
    """Steps of the whole job; increasing it continues a finished job. 0: computed from epochs."""
    epochs: Annotated[int, Field(ge=0, le=10_000), OPERATIONAL] = 0
    """Passes over the data, each of floor(rows / trainBatchSize) steps, instead of totalSteps."""
    start_from: Annotated[StartFrom | None, OPERATIONAL] = None
    """Checkpoint of another job to start from; ignored once the job has a checkpoint."""
    lora: Annotated[LoraSpec | None, MODEL] = None
    """Train low-rank adapters (LoRA) instead of all parameters; unspecified: all parameters."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1), MODEL] = 0
    """Seed of all random choices, which are keyed by (seed, step, prompt, sample)."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0), OPTIMIZATION] = 1e-6
    """Peak learning rate of AdamW; if unspecified, 1e-5 with lora."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000), OPTIMIZATION] = 0
    """Steps of linear warm-up; step i has i / warmupSteps of the learning rate."""
    learning_rate_schedule: Annotated[LearningRateSchedule, OPTIMIZATION] = (
        LearningRateSchedule.CONSTANT
    )
    """Schedule after the warm-up: constant, or decay to the minimum at decaySteps."""
    decay_steps: Annotated[int, Field(ge=0, le=MAX_STEPS), OPTIMIZATION] = 0
    """Last step of the decay; 0: totalSteps, which then cannot be changed."""
    min_learning_rate_ratio: Annotated[float, Field(ge=0.0, le=1.0), OPTIMIZATION] = 0.0
    """Minimum of Linear and Cosine, as a share of learningRate."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0), OPTIMIZATION] = 0.0
    """Decoupled weight decay of AdamW; norms and biases do not decay."""
    max_grad_norm: Annotated[float, Field(gt=0.0, le=1e6), OPTIMIZATION] = 1.0
    """Maximum global norm of the gradients, which are clipped to it."""
    mini_batch_prompts: Annotated[int, Field(ge=0, le=65536), OPTIMIZATION] = 0
    """Prompts per optimizer step, a divisor of trainBatchSize; 0: the whole batch."""
    precision: Annotated[Precision, OPERATIONAL] = Precision.BF16
    """Data type of trainer and engine."""
    gradient_checkpointing: Annotated[bool, OPERATIONAL] = False
    """Recompute activations in the backward pass: slower, less memory."""
    load_in_turns: Annotated[bool, OPERATIONAL] = False
    """Load the model one rank at a time: host memory for one copy per pod, but slower startup."""
    compile: Annotated[bool, OPERATIONAL] = False
    """Compile the layers with torch.compile, with dynamic shapes."""
    row_layout: Annotated[RowLayout, OPERATIONAL] = RowLayout.SHARED_PREFIX
    """Row layout of the training forward pass; if unspecified, Padded for models that require
    it."""
    tokens_per_micro_batch: Annotated[int, Field(ge=1, le=100_000_000), OPERATIONAL] = 16384
    """Maximum tokens per forward and backward pass of a rank."""
    off_policy_steps: Annotated[int, Field(ge=0, le=1), OPTIMIZATION] = 0
    """1: start the next rollouts before the step ends (requires placement Disaggregated)."""
