"""From a resolved specification to GPUs, CPUs, memory and /dev/shm, as named terms (A5, B5).

Formulas of operator facts 10. What the user gives wins and is shown beside the estimate; what
depends on the model is 0 until preflight has read it.
"""

from raggrpo_api.job import JobSpec
from raggrpo_api.preflight import Facts
from raggrpo_api.resources import Device, Placement
from raggrpo_api.status import Sizing, SizingTerm

from . import gpu_memory
from .quantity import GIB, MIB, format_bytes, parse_quantity, readable
from .world import cpus_per_pod, num_engines, num_ranks

SAMPLE_BYTES_PER_TOKEN = 12
"""Token id, mask and log-probability of one token on its way through Ray."""
CHECKPOINT_BYTES_PER_PARAMETER = 12
"""fp32 parameters and AdamW's two moments."""
WEIGHT_FILES = 3
"""Weights in /dev/shm: the newest two stay readable while the next is written."""
STORE_SHARE_OF_SHM = 0.95
"""Ray uses at most this share of /dev/shm."""
CPU_OBJECT_STORE = 128 * MIB
GPU_OBJECT_STORE = 2 * GIB
"""Least object stores; Ray itself refuses less than 75 MiB."""
GIVEN = "given"
"""Name of the term that stands for the user's own value."""


def size(spec: JobSpec, facts: Facts | None = None) -> Sizing:
    """Return amounts per trainer pod (GPUs: of the whole job) with the terms they consist of."""
    known = facts or Facts()
    unit = 64 * MIB if spec.resources.device is Device.CPU else GIB
    shm = _with_given("shm", _shm_terms(spec, known), spec.resources.shm_size)
    shm_size = spec.resources.shm_size or format_bytes(_total(shm), unit)
    memory = _memory_terms(spec, known, parse_quantity(shm_size))
    memory = _with_given("memory", memory, spec.resources.memory)
    return Sizing(
        gpus=_gpus(spec),
        cpu=spec.resources.cpu or f"{cpus_per_pod(spec.resources):g}",
        memory=spec.resources.memory or format_bytes(_total(memory), unit),
        shm=shm_size,
        terms=[*shm, *memory, *_gpu_terms(spec, known), *_retriever_terms(spec, known)],
    )


def estimate(sizing: Sizing, resource: str) -> int:
    """Return the sum of a resource's terms, the user's own value left out."""
    return sum(term.bytes for term in sizing.terms if _counts(term, resource))


def object_store_bytes(spec: JobSpec, facts: Facts | None = None) -> int:
    """Return the size of Ray's object store, always given to Ray explicitly.

    It carries samples, and the weights too where engines and rank 0 can lie in different pods.
    """
    least = CPU_OBJECT_STORE if spec.resources.device is Device.CPU else GPU_OBJECT_STORE
    samples = max(least, 2 * _rollout_batch_bytes(spec))
    return samples + (_weights(spec, facts or Facts()) if _has_many_pods(spec) else 0)


def retriever_bytes(facts: Facts) -> int:
    """Return the memory of a managed retriever: texts, their tokens and the index (C20)."""
    return 512 * MIB + 4 * facts.corpus_bytes


def _has_many_pods(spec: JobSpec) -> bool:
    resources = spec.resources
    return resources.nodes > 1 or resources.placement is Placement.DISAGGREGATED


def _weights(spec: JobSpec, facts: Facts) -> int:
    return facts.parameters * gpu_memory.element_bytes(spec)


def _gpus(spec: JobSpec) -> int:
    resources = spec.resources
    if resources.device is Device.CPU:
        return 0
    extra = resources.rollout_gpus if resources.placement is Placement.DISAGGREGATED else 0
    return num_ranks(resources) + extra


def _shm_terms(spec: JobSpec, facts: Facts) -> list[SizingTerm]:
    data, store = spec.data, object_store_bytes(spec, facts)
    batch = data.train_batch_size * data.max_prompt_length * 8
    engines = max(1, num_engines(spec) // spec.resources.nodes)
    copies = max(WEIGHT_FILES, engines) if _has_many_pods(spec) else WEIGHT_FILES
    terms = [
        _shm("rayObjectStore", store / STORE_SHARE_OF_SHM, f"{readable(store)} / 0.95, for Ray"),
        _shm(
            "loader",
            data.num_workers * data.prefetch_factor * batch,
            f"{data.num_workers} workers × {data.prefetch_factor} batches of {readable(batch)}",
        ),
        _shm(
            "weightSync",
            copies * _weights(spec, facts),
            _of_model(f"{copies} copies of the engine's weights", facts),
        ),
    ]
    if spec.resources.device is Device.GPU:
        tensor_parallel = spec.rollout.tensor_parallel_size
        rings = max(2 * GIB, 240 * MIB * engines * (1 + tensor_parallel))
        terms += [
            _shm("nccl", GIB, "NCCL's documented --shm-size=1g"),
            _shm(
                "vllm",
                rings,
                f"message rings of {engines} engines, tensor parallel "
                f"{tensor_parallel}, at least 2 GiB",
            ),
        ]
    return [*terms, _shm("margin", 0.2 * _total(terms), "20 %: too small ends in SIGBUS")]


def _memory_terms(spec: JobSpec, facts: Facts, shm: float) -> list[SizingTerm]:
    ranks_per_pod = num_ranks(spec.resources) // spec.resources.nodes
    ranks = max(1, num_ranks(spec.resources))
    shards = CHECKPOINT_BYTES_PER_PARAMETER * facts.parameters * ranks_per_pod // ranks
    staging = max(shards, 4 * facts.parameters)
    dataset = facts.rows * spec.data.max_prompt_length * 4
    terms = [
        *_process_terms(spec, facts, ranks_per_pod),
        _memory(
            "checkpointStaging",
            staging,
            _of_model("12 B per parameter of this pod's shards, or the export", facts),
        ),
        _memory(
            "dataset", dataset, f"{facts.rows} rows × 4 B × {spec.data.max_prompt_length} tokens"
        ),
        _memory("shm", shm, "/dev/shm is charged to memory"),
    ]
    return [*terms, _memory("pageCache", 0.1 * _total(terms), "10 %")]


def _process_terms(spec: JobSpec, facts: Facts, ranks_per_pod: int) -> list[SizingTerm]:
    if spec.resources.device is Device.GPU:
        heap = 4 * GIB * max(1, ranks_per_pod)
        return [_memory("processes", heap, f"{ranks_per_pod} GPUs × 4 GiB of CUDA processes")]
    state = gpu_memory.training_state(spec, facts) + gpu_memory.activations(spec, facts)
    engine = GIB + _weights(spec, facts)
    if facts.parameters:
        engine += gpu_memory.cpu_kv_cache(spec, facts)
    return [
        _memory("driver", GIB, "driver, progress server and Ray"),
        _memory("ranks", ranks_per_pod * GIB, f"{ranks_per_pod} ranks × 1 GiB of libraries"),
        _memory(
            "training",
            ranks_per_pod * state,
            _of_model("16 B per parameter and activations", facts),
        ),
        _memory("engine", engine, _of_model("vLLM 1 GiB, its weights and KV cache", facts)),
    ]


def _gpu_terms(spec: JobSpec, facts: Facts) -> list[SizingTerm]:
    """Return the shares of one GPU; nothing on CPU or while the model is unknown."""
    if spec.resources.device is Device.CPU or not facts.parameters:
        return []
    state = gpu_memory.training_state(spec, facts)
    active = gpu_memory.activations(spec, facts)
    weights = gpu_memory.engine_weights(spec, facts)
    ranks = num_ranks(spec.resources)
    terms = [
        _gpu("trainingState", state, f"16 B (20 B with KL) per parameter over {ranks} ranks"),
        _gpu("activations", active, f"{gpu_memory.micro_batch_tokens(spec)} tokens per pass"),
        _gpu("engineWeights", weights, f"tensor parallel {spec.rollout.tensor_parallel_size}"),
    ]
    if spec.resources.gpu_memory_gib:
        longest = spec.data.max_prompt_length + spec.data.max_response_length
        cache = max(0, gpu_memory.kv_cache(spec, facts))
        sequences = cache // max(1, longest * gpu_memory.kv_bytes_per_token(spec, facts))
        terms.append(_gpu("kvCache", cache, f"room for {sequences} sequences of {longest} tokens"))
    return terms


def _retriever_terms(spec: JobSpec, facts: Facts) -> list[SizingTerm]:
    reason = f"0.5 GiB + 4 × corpus of {readable(facts.corpus_bytes)}"
    if not facts.corpus_bytes:
        reason = "0.5 GiB; the corpus is measured in preflight"
    managed = [endpoint for endpoint in spec.retrieval.endpoints if endpoint.managed is not None]
    return [
        _term("retriever", endpoint.name, retriever_bytes(facts), reason) for endpoint in managed
    ]


def _with_given(resource: str, terms: list[SizingTerm], given: str) -> list[SizingTerm]:
    if not given:
        return terms
    reason = f"spec.resources replaces the estimate of {readable(_total(terms))}"
    return [*terms, _term(resource, GIVEN, parse_quantity(given), reason)]


def _of_model(reason: str, facts: Facts) -> str:
    return reason if facts.parameters else f"{reason}; known after preflight"


def _total(terms: list[SizingTerm]) -> int:
    return sum(term.bytes for term in terms if term.name != GIVEN)


def _counts(term: SizingTerm, resource: str) -> bool:
    return term.resource == resource and term.name != GIVEN


def _term(resource: str, name: str, amount: float, reason: str) -> SizingTerm:
    return SizingTerm(resource=resource, name=name, bytes=int(amount), reason=reason)


def _shm(name: str, amount: float, reason: str) -> SizingTerm:
    return _term("shm", name, amount, reason)


def _memory(name: str, amount: float, reason: str) -> SizingTerm:
    return _term("memory", name, amount, reason)


def _gpu(name: str, amount: float, reason: str) -> SizingTerm:
    return _term("gpu", name, amount, reason)


def _rollout_batch_bytes(spec: JobSpec) -> int:
    data = spec.data
    longest = data.max_prompt_length + data.max_response_length
    return data.train_batch_size * spec.rollout.n * longest * SAMPLE_BYTES_PER_TOKEN
