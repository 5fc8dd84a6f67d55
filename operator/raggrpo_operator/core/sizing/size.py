"""GPUs, CPUs, memory and /dev/shm of a resolved spec, as named terms.

Specified amounts take precedence and are listed after the terms of the estimate. Terms that depend
on the model are 0 before preflight.
"""

from collections.abc import Iterator
from functools import partial

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import (
    EXPORT_BYTES_PER_PARAMETER,
    GIB,
    LOADING_BYTES_PER_PARAMETER,
    concurrent_sequences,
    element_bytes,
    num_ranks,
    ranks_per_pod,
)
from raggrpo_api.memory.parameters import checkpoint_bytes, trained_parameters
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import Device, Placement
from raggrpo_api.status.sizing import PodRole, PodSizing, Sizing, SizingTerm
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.spec.quantity import format_bytes, parse_quantity
from raggrpo_operator.core.spec.world import cpus_per_pod

from . import pod_sizing
from .pod_sizing import PROCESS_BYTES_PER_GPU, Sized, cpu_engine_bytes, memory_unit
from .shared_memory import (
    capped_object_store,
    object_store_bytes,
    trainer_shm_terms,
    with_model_note,
)
from .terms import term, total, with_specified

_memory = partial(term, "memory")
_gpu = partial(term, "gpu")


def size(
    spec: JobSpec, facts: Facts | None = None, *, exports_best: bool = True, push_oom_kills: int = 0
) -> Sizing:
    """Return the resource requests of each kind of pod, with terms that explain each amount.

    The amounts outside `pods` are those of a trainer pod, except `gpus`: GPUs of the whole job.
    `exports_best`: whether the push exports a best checkpoint, which is unknown before the end.
    `push_oom_kills`: how many pods of the push ran out of memory; each doubles the memory.
    """
    known = facts or Facts()
    trainer, terms = _trainer(spec, known)
    rollout, staging = pod_sizing.rollout(spec, known), pod_sizing.staging(spec)
    push = pod_sizing.push(spec, known, exports_best=exports_best, oom_kills=push_oom_kills)
    agent = pod_sizing.agent(spec)
    others: list[Sized] = [
        pod_sizing.head(spec, known),
        *([rollout] if rollout is not None else []),
        *([staging] if staging is not None else []),
        pod_sizing.preflight(spec, known),
        *([push] if push is not None else []),
        *pod_sizing.retrievers(spec, known),
        *([agent] if agent is not None else []),
    ]
    return Sizing(
        gpus=_gpus(spec),
        cpu=trainer.cpu,
        memory=trainer.memory,
        shm=trainer.shm,
        pods=[trainer, *(pod for pod, _ in others)],
        terms=[*terms, *(each for _, of_pod in others for each in of_pod)],
    )


def estimate(sizing: Sizing, resource: str) -> int:
    """Return the sum of a resource's terms, without the specified value."""
    return total(each for each in sizing.terms if each.resource == resource)


def sizing_for(sizing: Sizing, role: PodRole, name: str = "") -> PodSizing:
    """Return the resources of one kind of pod; `name` is the endpoint name of a retriever."""
    [match] = [each for each in sizing.pods if each.role is role and each.name == name]
    return match


def _trainer(spec: JobSpec, facts: Facts) -> Sized:
    resources, unit = spec.resources, memory_unit(spec)
    shm = with_specified("shm", trainer_shm_terms(spec, facts), resources.shm_size)
    shm_size = resources.shm_size or format_bytes(total(shm), unit)
    memory = _memory_terms(spec, facts, parse_quantity(shm_size))
    memory = with_specified("memory", memory, resources.memory)
    sized = PodSizing(
        role=PodRole.TRAINER,
        replicas=resources.nodes,
        gpus=0 if resources.device is Device.CPU else resources.gpus_per_node,
        cpu=resources.cpu or f"{cpus_per_pod(resources):g}",
        memory=resources.memory or format_bytes(total(memory), unit),
        shm=shm_size,
        object_store=capped_object_store(shm_size, object_store_bytes(spec, facts)),
    )
    return sized, [*shm, *memory, *_gpu_terms(spec, facts)]


def _gpus(spec: JobSpec) -> int:
    resources = spec.resources
    if resources.device is Device.CPU:
        return 0
    extra = resources.rollout_gpus if resources.placement is Placement.DISAGGREGATED else 0
    return num_ranks(resources) + extra


def _memory_terms(spec: JobSpec, facts: Facts, shm: float) -> list[SizingTerm]:
    in_pod = ranks_per_pod(spec.resources)
    ranks = max(1, num_ranks(spec.resources))
    shards = checkpoint_bytes(spec.training, facts) * in_pod // ranks
    readers = 1 if spec.training.load_in_turns else in_pod
    loading = LOADING_BYTES_PER_PARAMETER * facts.parameters * readers
    staging = max(loading, shards, EXPORT_BYTES_PER_PARAMETER * facts.parameters)
    what = (
        f"maximum of loading the model ({readers} × 4 B per parameter), this pod's shards (12 B"
        f"{' per trained parameter' if spec.training.lora else ''}) and export"
    )
    staged = with_model_note(what, facts)
    dataset = facts.rows * spec.data.max_prompt_length * 4
    terms = [
        *_process_terms(spec, facts),
        _memory("staging", staging, staged),
        _memory(
            "dataset", dataset, f"{facts.rows} rows × 4 B × {spec.data.max_prompt_length} tokens"
        ),
        _memory("shm", shm, "/dev/shm is charged to memory"),
    ]
    return [*terms, _memory("pageCache", 0.1 * total(terms), "10 % of the other terms")]


def _process_terms(spec: JobSpec, facts: Facts) -> list[SizingTerm]:
    in_pod = ranks_per_pod(spec.resources)
    if spec.resources.device is Device.GPU:
        heap = PROCESS_BYTES_PER_GPU * max(1, in_pod)
        return [_memory("processes", heap, f"{in_pod} GPUs × 4 GiB of CUDA processes")]
    state = gpu_memory.training_state(spec, facts) + gpu_memory.activations(spec, facts)
    training = with_model_note(f"{_state_reason(spec)} and activations", facts)
    engine = with_model_note("1 GiB for vLLM, weights and KV cache", facts)
    return [
        _memory("driver", GIB, "driver, progress server and Ray"),
        _memory("ranks", in_pod * GIB, f"{in_pod} ranks × 1 GiB of libraries"),
        _memory("training", in_pod * state, training),
        _memory("engine", cpu_engine_bytes(spec, facts), engine),
    ]


def _gpu_terms(spec: JobSpec, facts: Facts) -> list[SizingTerm]:
    """Return the memory terms of one GPU, or [] on CPU or while the model is unknown."""
    if spec.resources.device is Device.CPU or not facts.parameters:
        return []
    longest = spec.data.max_sequence_length
    active = gpu_memory.activations(spec, facts)
    layout = f"{gpu_memory.micro_batch_tokens(spec)} tokens per pass, {spec.training.row_layout}"
    weights = gpu_memory.engine_weights(spec, facts)
    terms = [
        *_state_terms(spec, facts),
        _gpu(
            "unsharded",
            gpu_memory.unsharded_bytes(spec, facts),
            "embedding and two layers during a pass",
        ),
        _gpu("activations", active, layout),
        _gpu(
            "syncCopies",
            gpu_memory.weight_sync_bytes(spec, facts),
            "a tensor chunk sent to the engines",
        ),
        _gpu("engineWeights", weights, f"tensor parallel {spec.rollout.tensor_parallel_size}"),
        _gpu("engineOverhead", gpu_memory.ENGINE_OVERHEAD, "CUDA graphs and activations"),
    ]
    if whole := gpu_memory.device_memory(spec, facts):
        cache = max(0, gpu_memory.kv_cache(spec, facts))
        sequences = cache // max(1, longest * gpu_memory.kv_bytes_per_token(spec, facts))
        concurrent = concurrent_sequences(spec.data, spec.rollout)
        room = f"room for {sequences} sequences of {longest} tokens, up to {concurrent} concurrent"
        fragmentation = whole - gpu_memory.usable_memory(spec, facts)
        terms += [
            _gpu("kvCache", cache, room),
            _gpu("fragmentation", fragmentation, "8 %, including the CUDA context"),
        ]
    return terms


def _state_terms(spec: JobSpec, facts: Facts) -> Iterator[SizingTerm]:
    ranks = max(1, num_ranks(spec.resources))
    trained = trained_parameters(spec.training, facts)
    of_trained = "parameter of the adapters" if spec.training.lora else "parameter"
    for name, amount in gpu_memory.training_state_components(spec, facts).items():
        is_frozen = name == "frozenWeights"
        each = amount // max(1, facts.parameters if is_frozen else trained)
        of = "frozen parameter" if is_frozen else of_trained
        note = ", AdamW's moments" if name == "optimizer" else ""
        yield _gpu(name, amount // ranks, f"{each} B per {of} over {ranks} ranks{note}")


def _state_reason(spec: JobSpec) -> str:
    if spec.training.lora is None:
        return "16 B per parameter"
    frozen = element_bytes(spec.training.precision)
    return f"{frozen} B per frozen parameter, 16 B per parameter of the adapters"
