"""Memory sizes in bytes, as computed by both the operator's sizing and the trainer."""

from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.resources import Device, ResourcesSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.training import Precision

MIB = 2**20
GIB = 2**30

BF16_COMPUTE_MAJOR = 8
"""Minimum major compute capability for BF16."""
LOGIT_CHUNK = 2**25
"""Logits per chunk on CPU: 128 MiB in fp32."""
GPU_LOGIT_CHUNK = 2**27
"""Logits per chunk on GPU: 512 MiB in fp32. Every chunk updates the whole LM head gradient."""
WEIGHT_CHUNK_BYTES = GIB
"""Maximum unsharded weights per tensor chunk of a weight sync, unless one tensor is larger."""
EXPORT_BYTES_PER_PARAMETER = 4
"""Upper bound for an export, which has the data type of the initial model."""
LOADING_BYTES_PER_PARAMETER = 4
"""Host memory per parameter of a rank that loads the model as unsharded fp32."""
MAX_WEIGHT_FILES = 2
"""Maximum weight files in /dev/shm: an engine may read one file while a rank writes the next."""


def num_ranks(resources: ResourcesSpec) -> int:
    """Return the number of trainer ranks."""
    return resources.nodes * ranks_per_pod(resources)


def ranks_per_pod(resources: ResourcesSpec) -> int:
    """Return the trainer ranks of a node's pod: one per GPU, or `ranks` on CPU."""
    return resources.ranks if resources.device is Device.CPU else resources.gpus_per_node


def element_bytes(precision: Precision) -> int:
    """Return the bytes per element in forward passes; 4 for Auto."""
    return 2 if precision in (Precision.BF16, Precision.FP16) else 4


def kv_bytes_per_token(layers: int, kv_heads: int, head_size: int, precision: Precision) -> int:
    """Return the bytes of KV cache per token: 2·L·kvHeads·headSize·(bytes per element)."""
    return 2 * layers * kv_heads * head_size * element_bytes(precision)


def concurrent_sequences(data: DataSpec, rollout: RolloutSpec) -> int:
    """Return the maximum number of sequences that an engine decodes concurrently."""
    return min(rollout.max_num_seqs, data.train_batch_size * rollout.n)


def cpu_kv_cache(tokens: int, bytes_per_token: int) -> int:
    """Return the KV cache size of a CPU engine for `tokens` tokens: 64 MiB to 2 GiB."""
    return min(max(64 * MIB, tokens * bytes_per_token), 2 * GIB)
