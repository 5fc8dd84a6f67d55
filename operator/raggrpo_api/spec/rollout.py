"""`spec.rollout`: sampling and the vLLM engine."""

from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel


class RolloutSpec(ApiModel):
    """How completions are sampled."""

    n: Annotated[int, Field(ge=1, le=256)] = 3
    """Completions per prompt; equals algorithm.groupSize."""
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] = 0.6
    """Sampling temperature; must be above 0, since equal completions carry no advantage."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling; below 1 the trainer's log-probabilities no longer match exactly."""
    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=0.95)] = 0.6
    """Share of each GPU's memory that vLLM may take."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs per engine; divides GPUs per node and the attention heads."""
    enable_chunked_prefill: bool = True
    """Prefill long prompts in pieces between decode steps."""
    enable_prefix_caching: bool = True
    """Compute a prompt once for all its completions."""
    enforce_eager: bool = False
    """Run vLLM without CUDA graphs: less memory, slower."""
    max_num_batched_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens per engine step; 0: sized, at least prompt + response."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65536)] = 256
    """Sequences an engine decodes together."""
