"""Estimates what must fit into one GPU: training state, activations, weights and KV cache.

Everything is in bytes; N is the number of parameters, S the number of ranks, TP the
tensor-parallel size. Decides nothing: the rules do.
"""

from raggrpo_api import memory
from raggrpo_api.job import JobSpec
from raggrpo_api.memory import GIB, LOGIT_CHUNK, element_bytes
from raggrpo_api.preflight import Facts
from raggrpo_api.spec.resources import Placement
from raggrpo_api.spec.training import RowLayout
from raggrpo_operator.core.spec.world import num_ranks

STATE_BYTES_PER_PARAMETER = 16
"""FSDP2 with AdamW: fp32 parameters, gradients and two moments, 4 bytes each."""
REFERENCE_BYTES_PER_PARAMETER = 4
ACTIVATION_BYTES_PER_ELEMENT = 34
"""Per token, hidden unit and layer in bf16 (arXiv 2205.05198, without the a·s/h term)."""
ENGINE_OVERHEAD = 2 * GIB
"""vLLM's CUDA graphs and activations."""
USABLE_SHARE = 0.92
"""Share of a GPU's memory; the rest goes to the CUDA context and fragmentation."""


def training_state(spec: JobSpec, facts: Facts) -> int:
    """Return what one rank holds permanently: 16·N/S, or 20·N/S with a reference model."""
    per_parameter = STATE_BYTES_PER_PARAMETER
    if spec.algorithm.kl_coefficient > 0:
        per_parameter += REFERENCE_BYTES_PER_PARAMETER
    return per_parameter * facts.parameters // max(1, num_ranks(spec.resources))


def activation_bytes_per_token(spec: JobSpec, facts: Facts) -> int:
    """Return the activations per token: 34·h·L, or 2·h·L + 34·h if they are recomputed."""
    scale = element_bytes(spec.training.precision) / 2
    layers = facts.layers
    kept = ACTIVATION_BYTES_PER_ELEMENT * layers
    if spec.training.gradient_checkpointing:
        kept = 2 * layers + ACTIVATION_BYTES_PER_ELEMENT
    return int(kept * facts.hidden_size * scale)


def activations(spec: JobSpec, facts: Facts) -> int:
    """Return the activations of one micro-batch plus one chunk of logits."""
    return micro_batch_tokens(spec) * activation_bytes_per_token(spec, facts) + _logits(spec, facts)


def tokens_that_fit(room: int, spec: JobSpec, facts: Facts) -> int:
    """Return the largest micro-batch whose activations take at most `room`."""
    return max(0, room - _logits(spec, facts)) // max(1, activation_bytes_per_token(spec, facts))


def micro_batch_tokens(spec: JobSpec) -> int:
    """Return the tokens of the largest micro-batch: the budget, or all that an update has."""
    data, rollout = spec.data, spec.rollout
    rows = spec.training.mini_batch_prompts or data.train_batch_size
    tokens_per_prompt = rollout.n * data.max_sequence_length
    if spec.training.row_layout is RowLayout.SHARED_PREFIX:
        tokens_per_prompt = data.max_prompt_length + rollout.n * data.max_response_length
    return min(spec.training.tokens_per_micro_batch, rows * tokens_per_prompt)


def engine_weights(spec: JobSpec, facts: Facts) -> int:
    """Return the engine's weights on one GPU: 2·N/TP, or 4·N/TP in FP32."""
    return weights_bytes(spec, facts) // spec.rollout.tensor_parallel_size


def weights_bytes(spec: JobSpec, facts: Facts) -> int:
    """Return the whole weights that engines are given: 2·N, or 4·N in FP32."""
    return element_bytes(spec.training.precision) * facts.parameters


def kv_bytes_per_token(spec: JobSpec, facts: Facts) -> int:
    """Return the KV cache of one token on one GPU: 2·L·kvHeads·headSize·bytes/TP."""
    whole = memory.kv_bytes_per_token(
        facts.layers, facts.kv_heads, facts.head_size, spec.training.precision
    )
    return whole // spec.rollout.tensor_parallel_size


def cpu_kv_cache(spec: JobSpec, facts: Facts) -> int:
    """Return the CPU engine's cache for all concurrent sequences."""
    sequences = memory.concurrent_sequences(spec.data, spec.rollout)
    tokens = sequences * spec.data.max_sequence_length
    return memory.cpu_kv_cache(tokens, kv_bytes_per_token(spec, facts))


def kv_cache(spec: JobSpec, facts: Facts) -> int:
    """Return what is left for an engine's KV cache; negative if its weights do not fit."""
    return engine_share(spec) - engine_weights(spec, facts) - ENGINE_OVERHEAD


def engine_share(spec: JobSpec) -> int:
    """Return the bytes of one GPU that vLLM takes."""
    return int(spec.resources.gpu_memory_gib * GIB * spec.rollout.gpu_memory_utilization)


def usable_memory(spec: JobSpec) -> int:
    """Return the bytes of one GPU that are available for use."""
    return int(spec.resources.gpu_memory_gib * GIB * USABLE_SHARE)


def training_room(spec: JobSpec) -> int:
    """Return what a rank may hold permanently, which excludes the share of a colocated engine.

    A colocated engine sleeps while the rank trains, so activations may use its share.
    """
    if spec.resources.placement is Placement.DISAGGREGATED:
        return usable_memory(spec)
    return usable_memory(spec) - engine_share(spec)


def _logits(spec: JobSpec, facts: Facts) -> int:
    """Return the size of two fp32 copies of one chunk of logits."""
    return 2 * 4 * min(LOGIT_CHUNK, micro_batch_tokens(spec) * facts.vocabulary)
