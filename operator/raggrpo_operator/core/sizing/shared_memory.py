"""Contents of /dev/shm per kind of pod, and the size of Ray's object store.

Processes that run out of /dev/shm die with SIGBUS, so the size is always computed.
"""

from raggrpo_api.memory.arithmetic import GIB, MAX_WEIGHT_FILES, MIB
from raggrpo_api.memory.gpu import weights_bytes
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import Device, Placement
from raggrpo_api.status.sizing import SizingTerm
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.spec.quantity import format_size, parse_quantity
from raggrpo_operator.core.spec.world import num_engines

from .terms import term, total

SAMPLE_BYTES_PER_TOKEN = 12
"""Bytes of a token's id, mask and logprob as passed through Ray."""
WEIGHT_FILES = MAX_WEIGHT_FILES + 1
"""Maximum copies of the weights, including a deleted file that an engine still has open."""
STORE_SHARE_OF_SHM = 0.95
"""Maximum share of /dev/shm for Ray's object store."""
CPU_OBJECT_STORE = 128 * MIB
GPU_OBJECT_STORE = 2 * GIB
"""Minimum bytes of an object store, on CPU nodes and on GPU nodes; Ray rejects less than 75 MiB."""
MARGIN = 0.2


def object_store_bytes(spec: JobSpec, facts: Facts | None = None) -> int:
    """Return the size of a trainer pod's object store.

    It contains samples, and weights if engines and rank 0 may be in different pods.
    """
    weights = weights_bytes(spec, facts or Facts()) if _has_several_pods(spec) else 0
    return head_object_store_bytes(spec) + weights


def head_object_store_bytes(spec: JobSpec) -> int:
    """Return the size of the Ray head's object store, which contains the samples of each step."""
    minimum = CPU_OBJECT_STORE if spec.resources.device is Device.CPU else GPU_OBJECT_STORE
    return max(minimum, 2 * rollout_batch_bytes(spec))


def capped_object_store(shm_size: str, store: int) -> int:
    """Return the size of an object store, limited by the size of /dev/shm."""
    return min(store, int(STORE_SHARE_OF_SHM * parse_quantity(shm_size)))


def rollout_batch_bytes(spec: JobSpec) -> int:
    """Return the size of the samples of a step as passed through Ray."""
    data = spec.data
    samples = data.train_batch_size * spec.rollout.n
    return samples * data.max_sequence_length * SAMPLE_BYTES_PER_TOKEN


def trainer_shm_terms(spec: JobSpec, facts: Facts) -> list[SizingTerm]:
    """Return the /dev/shm terms of a pod with ranks and, if colocated, engines."""
    engines = max(1, num_engines(spec) // spec.resources.nodes)
    copies = max(WEIGHT_FILES, engines) if _has_several_pods(spec) else WEIGHT_FILES
    weights = with_model_note(f"{copies} copies of the engine's weights", facts)
    terms = [
        _store_term("shm", object_store_bytes(spec, facts)),
        term("shm", "weightSync", copies * weights_bytes(spec, facts), weights),
    ]
    if spec.resources.device is Device.GPU:
        terms += _gpu_terms(spec, engines, "shm")
    return [*terms, _margin("shm", terms)]


def head_shm_terms(spec: JobSpec) -> list[SizingTerm]:
    """Return the /dev/shm terms of the Ray head pod, which has only an object store."""
    terms = [_store_term("headShm", head_object_store_bytes(spec))]
    return [*terms, _margin("headShm", terms)]


def rollout_shm_terms(spec: JobSpec, facts: Facts) -> list[SizingTerm]:
    """Return the /dev/shm terms of a pod with one engine and no ranks."""
    weights = with_model_note("one copy of the engine's weights", facts)
    terms = [
        _store_term("rolloutShm", object_store_bytes(spec, facts)),
        term("rolloutShm", "weightSync", weights_bytes(spec, facts), weights),
    ]
    if spec.resources.device is Device.GPU:
        terms += _gpu_terms(spec, 1, "rolloutShm")
    return [*terms, _margin("rolloutShm", terms)]


def with_model_note(reason: str, facts: Facts) -> str:
    """Return the reason of a term, with a note if preflight has not read the model yet."""
    return reason if facts.parameters else f"{reason}; size known after preflight"


def _gpu_terms(spec: JobSpec, engines: int, resource: str) -> list[SizingTerm]:
    tensor_parallel = spec.rollout.tensor_parallel_size
    rings = max(2 * GIB, 240 * MIB * engines * (1 + tensor_parallel))
    reason = f"message rings of {engines} engines, tensor parallel {tensor_parallel}"
    return [
        term(resource, "nccl", GIB, "NCCL's documented --shm-size=1g"),
        term(resource, "vllm", rings, f"{reason}, at least 2 GiB"),
    ]


def _store_term(resource: str, store: int) -> SizingTerm:
    reason = f"{format_size(store)} / 0.95, as Ray uses at most 95 % of /dev/shm"
    return term(resource, "rayObjectStore", store / STORE_SHARE_OF_SHM, reason)


def _margin(resource: str, terms: list[SizingTerm]) -> SizingTerm:
    return term(
        resource,
        "margin",
        MARGIN * total(terms),
        "20 %, because a full /dev/shm causes SIGBUS",
    )


def _has_several_pods(spec: JobSpec) -> bool:
    resources = spec.resources
    return resources.nodes > 1 or resources.placement is Placement.DISAGGREGATED
