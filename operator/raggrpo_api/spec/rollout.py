"""`spec.rollout`: sampling parameters and vLLM options."""

from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import OPERATIONAL, OPTIMIZATION

from .agent import AgentSpec


class RolloutSpec(ApiModel):
    """Sampling parameters and vLLM options."""

    n: Annotated[int, Field(ge=1, le=256), OPTIMIZATION] = 3
    """Completions per prompt; equals algorithm.groupSize."""
    temperature: Annotated[float, Field(ge=0.0, le=100.0), OPTIMIZATION] = 0.6
    """Sampling temperature, from 0.01 to 2."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0), OPTIMIZATION] = 1.0
    """Nucleus sampling probability; below 1, logprobs of trainer and engine differ."""
    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=0.95), OPERATIONAL] = 0.6
    """Share of each GPU's memory for vLLM."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64), OPERATIONAL] = 1
    """GPUs per engine: 1 if colocated, else a divisor of resources.rolloutGpus and of the number of
    attention heads."""
    enable_chunked_prefill: Annotated[bool, OPERATIONAL] = True
    """Split the prefill of long prompts between decode steps; always off on CPU."""
    enable_prefix_caching: Annotated[bool, OPERATIONAL] = True
    """Share the KV cache of a prompt among its completions."""
    enforce_eager: Annotated[bool, OPERATIONAL] = False
    """Run vLLM without CUDA graphs: slower, less memory."""
    max_num_batched_tokens: Annotated[int, Field(ge=0, le=10_000_000), OPERATIONAL] = 0
    """Maximum tokens per engine step; 0: computed, at least prompt plus response."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65536), OPERATIONAL] = 256
    """Maximum concurrent sequences per engine."""
    agent: AgentSpec | None = None
    """Application whose calls of the policy are trained; unspecified: completions of prompts."""
