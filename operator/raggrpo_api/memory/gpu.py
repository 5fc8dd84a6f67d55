"""Estimates of GPU memory: training state, activations, weights and KV cache.

All values are in bytes; N is the number of parameters, A that of adapters, S the number of ranks,
TP the tensor-parallel size, b the bytes per element of the forward pass. Rules, plan, status and
the check of measured devices share these estimates.
"""

from raggrpo_api.memory import arithmetic as memory
from raggrpo_api.memory.arithmetic import (
    GIB,
    GPU_LOGIT_CHUNK,
    LOGIT_CHUNK,
    MIB,
    WEIGHT_CHUNK_BYTES,
    element_bytes,
    num_ranks,
)
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.resources import Device, Placement
from raggrpo_api.spec.training import RowLayout
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import Facts

from .parameters import adapter_parameters, trained_parameters

MemoryInputs = JobSpec | TrainerConfig
"""Types with the sections that the estimates read."""

ACTIVATION_BYTES_PER_ELEMENT = 34
"""Per token, hidden unit and layer in bf16 (arXiv 2205.05198, without the a·s/h term), for models
with an unknown MLP."""
NORM_BYTES = 16
"""Per token, hidden unit and layer: inputs of the two norms, also saved in fp32."""
ATTENTION_HEAD_BYTES = 4
"""Per token, layer and attention unit: queries and outputs, or keys and values, in bf16."""
MLP_BYTES = 8
"""Per token, layer and unit of a gated MLP: gate, activation, up projection and product."""
SCORE_BYTES = 5
"""Per token, attention head and attended position: scores, softmax and dropout in bf16."""
ENGINE_OVERHEAD = 2 * GIB
"""Memory of vLLM's CUDA graphs and activations."""
MAX_GPU_BYTES = 288 * 10**9
"""Largest memory of a GPU (B300, MI355X)."""
USABLE_SHARE = 0.92
"""Usable share of a GPU's memory; the rest is for the CUDA context and fragmentation."""


def training_state(spec: MemoryInputs, facts: Facts) -> int:
    """Return the persistent training state of a rank.

    That is 16·N/S, 20·N/S with a reference model, or (b·N + 16·A)/S with adapters, which need no
    reference model.
    """
    return sum(training_state_components(spec, facts).values()) // max(1, num_ranks(spec.resources))


def training_state_components(spec: MemoryInputs, facts: Facts) -> dict[str, int]:
    """Return the training state of all ranks by component: FSDP2 with AdamW, states in fp32.

    A model with adapters is frozen in the data type of the forward pass. Without adapters, the
    model without them is the reference.
    """
    trained = trained_parameters(spec.training, facts)
    components = {"weights": 4 * trained, "gradients": 4 * trained, "optimizer": 8 * trained}
    if spec.training.lora:
        frozen = element_bytes(spec.training.precision) * facts.parameters
        return {"frozenWeights": frozen, **components}
    if spec.algorithm.kl_coefficient > 0:
        components["reference"] = 4 * facts.parameters
    return components


def activation_bytes_per_token(spec: MemoryInputs, facts: Facts) -> int:
    """Return the bytes of activations per token: all layers, or 2·h·L plus one layer if recomputed.

    Eager attention adds 5·a·s per layer; other implementations never materialize all scores
    (arXiv 2205.14135).
    """
    scale = element_bytes(spec.training.precision) / 2
    layers = facts.layers
    in_layer = _layer_bytes_per_token(facts)
    if spec.model.attention is Attention.EAGER:  # saves the scores of each attention head
        in_layer += SCORE_BYTES * facts.heads * spec.data.max_sequence_length
    saved = in_layer * layers
    if spec.training.gradient_checkpointing:
        saved = 2 * facts.hidden_size * layers + in_layer
    return int(saved * scale)


def unsharded_bytes(spec: MemoryInputs, facts: Facts) -> int:
    """Return the bytes of gathered parameters: b·(V·h + 2·layer), plus the largest gradient.

    The embedding stays gathered, the next layer is prefetched, and gradients are reduced in fp32.
    With adapters, only theirs are reduced, but a layer's merged weights exist as well.
    """
    embedding = facts.vocabulary * facts.hidden_size
    layer = max(0, facts.parameters - embedding) // max(1, facts.layers)
    element = element_bytes(spec.training.precision)
    gathered = element * (embedding + 2 * layer)
    if spec.training.lora:
        adapters = adapter_parameters(spec.training, facts) // max(1, facts.layers)
        return gathered + element * layer + 4 * adapters
    return gathered + 4 * max(embedding, layer)


def weight_sync_bytes(spec: MemoryInputs, facts: Facts) -> int:
    """Return the memory of a weight sync: a tensor chunk, its packed copy, and the next tensor."""
    largest = element_bytes(spec.training.precision) * facts.vocabulary * facts.hidden_size
    chunk = max(largest, min(WEIGHT_CHUNK_BYTES, weights_bytes(spec, facts)))
    return 2 * chunk + largest


def activations(spec: MemoryInputs, facts: Facts) -> int:
    """Return the bytes of a micro-batch's activations plus one chunk of logits."""
    return micro_batch_tokens(spec) * activation_bytes_per_token(spec, facts) + _logits(spec, facts)


def max_micro_batch_tokens(room: int, spec: MemoryInputs, facts: Facts) -> int:
    """Return the tokens of the largest micro-batch whose activations fit into `room`."""
    return max(0, room - _logits(spec, facts)) // max(1, activation_bytes_per_token(spec, facts))


def micro_batch_tokens(spec: MemoryInputs) -> int:
    """Return the tokens of the largest micro-batch: the token budget, or all tokens if fewer."""
    data, rollout = spec.data, spec.rollout
    rows = spec.training.mini_batch_prompts or data.train_batch_size
    tokens_per_prompt = rollout.n * data.max_sequence_length
    if spec.training.row_layout is RowLayout.SHARED_PREFIX:
        tokens_per_prompt = data.max_prompt_length + rollout.n * data.max_response_length
    return min(spec.training.tokens_per_micro_batch, rows * tokens_per_prompt)


def engine_weights(spec: MemoryInputs, facts: Facts) -> int:
    """Return the size of an engine's weights per GPU: 2·N/TP, or 4·N/TP in FP32."""
    return weights_bytes(spec, facts) // spec.rollout.tensor_parallel_size


def weights_bytes(spec: MemoryInputs, facts: Facts) -> int:
    """Return the size of an engine's unsharded weights: 2·N, or 4·N in FP32."""
    return element_bytes(spec.training.precision) * facts.parameters


def kv_bytes_per_token(spec: MemoryInputs, facts: Facts) -> int:
    """Return the KV cache size per token and GPU: 2·L·kvHeads·headSize·b/TP."""
    whole = memory.kv_bytes_per_token(
        facts.layers, facts.kv_heads, facts.head_size, spec.training.precision
    )
    return whole // spec.rollout.tensor_parallel_size


def cpu_kv_cache(spec: MemoryInputs, facts: Facts) -> int:
    """Return the KV cache size of a CPU engine for all concurrent sequences."""
    sequences = memory.concurrent_sequences(spec.data, spec.rollout)
    tokens = sequences * spec.data.max_sequence_length
    return memory.cpu_kv_cache(tokens, kv_bytes_per_token(spec, facts))


def kv_cache(spec: MemoryInputs, facts: Facts) -> int:
    """Return the memory available for an engine's KV cache; negative if weights do not fit."""
    return engine_share(spec, facts) - engine_weights(spec, facts) - ENGINE_OVERHEAD


def full_kv_cache(spec: MemoryInputs, facts: Facts) -> int:
    """Return the KV cache size per GPU for all concurrent sequences at maximum length."""
    sequences = memory.concurrent_sequences(spec.data, spec.rollout)
    return sequences * spec.data.max_sequence_length * kv_bytes_per_token(spec, facts)


def device_memory(spec: MemoryInputs, facts: Facts) -> int:
    """Return the memory of one GPU: the specified value, else the reported one; 0 if unknown."""
    return spec.resources.gpu_memory_gib * GIB or facts.gpu_memory_mib * MIB


def assumed_memory(spec: MemoryInputs, facts: Facts) -> int:
    """Return the memory of one GPU, or MAX_GPU_BYTES if unknown."""
    return device_memory(spec, facts) or MAX_GPU_BYTES


def engine_share(spec: MemoryInputs, facts: Facts) -> int:
    """Return the memory of one GPU that vLLM reserves."""
    return int(assumed_memory(spec, facts) * spec.rollout.gpu_memory_utilization)


def usable_memory(spec: MemoryInputs, facts: Facts) -> int:
    """Return the usable memory of one GPU."""
    return int(assumed_memory(spec, facts) * USABLE_SHARE)


def training_room(spec: MemoryInputs, facts: Facts) -> int:
    """Return the memory for a rank's training state, without the share of a colocated engine.

    Only activations may use that share: the engine sleeps during training, but is awake during a
    weight sync, when the training state exists as well.
    """
    room = usable_memory(spec, facts) - weight_sync_bytes(spec, facts)
    if spec.resources.placement is Placement.DISAGGREGATED:
        return room
    return room - engine_share(spec, facts)


def activation_room(spec: MemoryInputs, facts: Facts) -> int:
    """Return the memory for activations and logits during training."""
    persistent = training_state(spec, facts) + unsharded_bytes(spec, facts)
    return usable_memory(spec, facts) - persistent


def training_state_excess(spec: MemoryInputs, facts: Facts) -> int:
    """Return the training state minus the memory available for it; positive if it does not fit."""
    return training_state(spec, facts) - training_room(spec, facts)


def engine_excess(spec: MemoryInputs, facts: Facts) -> int:
    """Return one sequence's KV cache minus the available memory; positive if it does not fit."""
    one = spec.data.max_sequence_length * kv_bytes_per_token(spec, facts)
    return one - kv_cache(spec, facts)


def _layer_bytes_per_token(facts: Facts) -> int:
    """Return the bytes of bf16 activations that a layer saves per token, without score matrices."""
    if not facts.mlp_size:
        return ACTIVATION_BYTES_PER_ELEMENT * facts.hidden_size
    heads = (facts.heads + facts.kv_heads) * facts.head_size
    return (
        NORM_BYTES * facts.hidden_size + ATTENTION_HEAD_BYTES * heads + MLP_BYTES * facts.mlp_size
    )


def _logits(spec: MemoryInputs, facts: Facts) -> int:
    """Return the bytes of all fp32 copies of a chunk of logits: two on CPU, up to three on GPU."""
    on_cpu = spec.resources.device is Device.CPU
    chunk, copies = (LOGIT_CHUNK, 2) if on_cpu else (GPU_LOGIT_CHUNK, 3)
    return copies * 4 * min(chunk, micro_batch_tokens(spec) * facts.vocabulary)
