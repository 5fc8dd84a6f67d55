"""CPU, memory and /dev/shm of the pods of Ray head, engines, preflight, retrievers and agents.

Memory is both request and limit, so the cluster reserves the sum of the terms.
"""

from collections.abc import Mapping
from functools import partial

from raggrpo_api.memory.arithmetic import (
    EXPORT_BYTES_PER_PARAMETER,
    GIB,
    LOADING_BYTES_PER_PARAMETER,
    MIB,
)
from raggrpo_api.memory.gpu import cpu_kv_cache, weights_bytes
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import Device, Placement
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_api.status.sizing import PodRole, PodSizing, SizingTerm
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.spec.quantity import format_bytes, format_size, parse_quantity
from raggrpo_operator.core.spec.sources import source_urls
from raggrpo_operator.core.spec.world import cpus_per_rollout_pod, num_engines

from .retriever_memory import retriever_terms
from .shared_memory import (
    capped_object_store,
    head_object_store_bytes,
    head_shm_terms,
    object_store_bytes,
    rollout_batch_bytes,
    rollout_shm_terms,
    with_model_note,
)
from .terms import term, total, with_specified

HEAD_CPU = {Device.GPU: "4", Device.CPU: "250m"}
"""CPUs of the Ray head pod, whose driver tokenizes, scores and packs."""
SIDE_CPU = {Device.GPU: "1", Device.CPU: "100m"}
"""CPUs of preflight and retriever pods; capped at `resources.cpu`, as is HEAD_CPU."""
RAY_HEAD_BYTES = {Device.GPU: 2 * GIB, Device.CPU: 3 * GIB // 2}
DRIVER_BYTES = {Device.GPU: 4 * GIB, Device.CPU: 3 * GIB // 2}
PREFLIGHT_BYTES = {Device.GPU: 4 * GIB, Device.CPU: 2 * GIB}
PARSER_BYTES = GIB
"""Memory of the process that imports the parsers of vLLM, for the replies to an application."""
STAGING_BYTES = 2 * GIB
"""Memory of the staging pod, whose clients buffer parts of several files."""
PUSH_BYTES = 2 * GIB
"""Memory of the push pod without the model that it exports."""
PROCESS_BYTES_PER_GPU = 4 * GIB
"""Host memory of the CUDA processes of one GPU."""
AGENT_CONTAINER_BYTES = GIB
"""Memory of a pod of an agent container, if unspecified."""
PROCESS_MEMORY = "256Mi"
"""Memory of a process of an agent of type Python, if unspecified.

Clients of the API take 70 to 130 MiB; the rest is for the application.
"""
PARSER_PURPOSE = "vLLM's parsers of tool calls and reasoning"
PROCESS_CPU = 1 / 16
"""CPUs of such a process, which waits for the policy most of the time."""
PYTHON_OBJECT_FACTOR = 6
"""Size of a token's Python objects, relative to its packed id, mask and logprob (12 bytes)."""
TEXT_BYTES_PER_TOKEN = 8
"""Bytes of text and token id per token of a prompt."""

_head = partial(term, "headMemory")
_rollout = partial(term, "rolloutMemory")
Sized = tuple[PodSizing, list[SizingTerm]]


def memory_unit(spec: JobSpec) -> int:
    """Return the unit in bytes to which amounts are rounded up."""
    return 64 * MIB if spec.resources.device is Device.CPU else GIB


def head(spec: JobSpec, facts: Facts) -> Sized:
    """Return the size of the Ray head pod: Ray's system processes, driver and progress server."""
    device, unit = spec.resources.device, memory_unit(spec)
    shm = head_shm_terms(spec)
    shm_size = format_bytes(total(shm), unit)
    samples = 2 * PYTHON_OBJECT_FACTOR * rollout_batch_bytes(spec)
    memory = [
        _head("ray", RAY_HEAD_BYTES[device], "GCS, dashboard and agents"),
        _head("driver", DRIVER_BYTES[device], "driver, rewards and progress server"),
        _head("dataset", _dataset(spec, facts), f"{facts.rows} prompts and their tokens"),
        _head("samples", samples, "samples of two steps as Python objects"),
        *_agent_processes(spec),
        *_parser(spec),
        _head("shm", parse_quantity(shm_size), "/dev/shm is charged to memory"),
    ]
    memory.append(_head("pageCache", 0.1 * total(memory), "10 % of the other terms"))
    pod = PodSizing(
        role=PodRole.HEAD,
        cpu=_capped_cpu(spec, HEAD_CPU, _processes(spec) * PROCESS_CPU),
        memory=format_bytes(total(memory), unit),
        shm=shm_size,
        object_store=head_object_store_bytes(spec),
    )
    return pod, [*shm, *memory]


def rollout(spec: JobSpec, facts: Facts) -> Sized | None:
    """Return the size of a disaggregated engine's pod, or None if engines are colocated."""
    if spec.resources.placement is not Placement.DISAGGREGATED:
        return None
    resources, unit = spec.resources, memory_unit(spec)
    gpus = spec.rollout.tensor_parallel_size if resources.device is Device.GPU else 0
    shm = with_specified("rolloutShm", rollout_shm_terms(spec, facts), resources.shm_size)
    shm_size = resources.shm_size or format_bytes(total(shm), unit)
    memory = [
        _engine_term(spec, facts, gpus),
        _rollout("shm", parse_quantity(shm_size), "/dev/shm is charged to memory"),
    ]
    memory.append(_rollout("pageCache", 0.1 * total(memory), "10 % of the other terms"))
    memory = with_specified("rolloutMemory", memory, resources.memory)
    pod = PodSizing(
        role=PodRole.ROLLOUT,
        replicas=num_engines(spec),
        gpus=gpus,
        cpu=cpus_per_rollout_pod(resources, gpus),
        memory=resources.memory or format_bytes(total(memory), unit),
        shm=shm_size,
        object_store=capped_object_store(shm_size, object_store_bytes(spec, facts)),
    )
    return pod, [*shm, *memory]


def preflight(spec: JobSpec, facts: Facts) -> Sized:
    """Return the size of the preflight pod, which reads all prompts."""
    device = spec.resources.device
    memory = [
        term(
            "preflightMemory",
            "checks",
            PREFLIGHT_BYTES[device],
            "tokenizer, reward code and a small model",
        ),
        term("preflightMemory", "dataset", _dataset(spec, facts), f"{facts.rows} prompts"),
    ]
    if spec.rollout.agent is not None and not spec.rollout.agent.is_service:
        process = parse_quantity(spec.rollout.agent.process_memory or PROCESS_MEMORY)
        memory.append(term("preflightMemory", "agent", process, "a process of the agent"))
        memory.append(term("preflightMemory", "parser", PARSER_BYTES, PARSER_PURPOSE))
    amount = format_bytes(total(memory), memory_unit(spec))
    cpu = _capped_cpu(spec, SIDE_CPU)
    return PodSizing(role=PodRole.PREFLIGHT, cpu=cpu, memory=amount), memory


def staging(spec: JobSpec) -> Sized | None:
    """Return the size of the staging pod, or None if the job downloads nothing."""
    if not source_urls(spec):
        return None
    memory = [term("stagingMemory", "clients", STAGING_BYTES, "buffers of parallel downloads")]
    amount = format_bytes(total(memory), memory_unit(spec))
    return PodSizing(role=PodRole.STAGING, cpu=_capped_cpu(spec, SIDE_CPU), memory=amount), memory


def push(spec: JobSpec, facts: Facts, *, exports_best: bool, oom_kills: int = 0) -> Sized | None:
    """Return the size of the push pod, or None if the job pushes nothing."""
    if not spec.output.push:
        return None
    return upload(spec, facts, exports=exports_best, oom_kills=oom_kills)


def upload(spec: JobSpec, facts: Facts, *, exports: bool, oom_kills: int = 0) -> Sized:
    """Return the size of a pod that uploads a model, and with `exports` a checkpoint's.

    The export has the model in fp32 and once more in its own data type. Each earlier pod that ran
    out of memory doubles the size.
    """
    memory = [term("pushMemory", "clients", PUSH_BYTES, "libraries and buffers of uploads")]
    if exports:
        exported = (LOADING_BYTES_PER_PARAMETER + EXPORT_BYTES_PER_PARAMETER) * facts.parameters
        note = with_model_note("8 B per parameter", facts)
        memory.append(term("pushMemory", "export", exported, note))
    if oom_kills:
        added = total(memory) * (2**oom_kills - 1)
        note = f"doubled for each of {oom_kills} pods that ran out of memory"
        memory.append(term("pushMemory", "outOfMemory", added, note))
    amount = format_bytes(total(memory), memory_unit(spec))
    return PodSizing(role=PodRole.PUSH, cpu=_capped_cpu(spec, SIDE_CPU), memory=amount), memory


def retrievers(spec: JobSpec, facts: Facts) -> list[Sized]:
    """Return the sizes of the managed retrievers' pods, named by endpoint."""
    return [_retriever(spec, facts, *item) for item in spec.retrieval.managed.items()]


def _retriever(spec: JobSpec, facts: Facts, name: str, managed: ManagedRetriever) -> Sized:
    terms = retriever_terms(name, managed, facts)
    pod = PodSizing(
        role=PodRole.RETRIEVER,
        name=name,
        cpu=_capped_cpu(spec, SIDE_CPU),
        memory=managed.memory or format_bytes(total(terms), memory_unit(spec)),
    )
    return pod, terms


def agent(spec: JobSpec) -> Sized | None:
    """Return the size of the pods of an agent's container, or None if the job has none."""
    container = spec.rollout.agent.container if spec.rollout.agent is not None else None
    if container is None:
        return None
    default = term(
        "agentMemory", "application", AGENT_CONTAINER_BYTES, "default of container.memory"
    )
    memory = with_specified("agentMemory", [default], container.memory)
    pod = PodSizing(
        role=PodRole.AGENT,
        replicas=container.replicas,
        cpu=container.cpu or _capped_cpu(spec, SIDE_CPU),
        memory=container.memory or format_bytes(AGENT_CONTAINER_BYTES, memory_unit(spec)),
    )
    return pod, memory


def _agent_processes(spec: JobSpec) -> list[SizingTerm]:
    """Return the memory of the processes of an agent of type Python, which the driver starts."""
    if not (number := _processes(spec)):
        return []
    assert spec.rollout.agent is not None
    each = parse_quantity(spec.rollout.agent.process_memory or PROCESS_MEMORY)
    reason = f"{number} processes of the agent × {format_size(each)}"
    return [_head("agent", number * each, reason)]


def _parser(spec: JobSpec) -> list[SizingTerm]:
    """Return the memory of the process that parses replies; most chat templates have a parser."""
    if spec.rollout.agent is None:
        return []
    return [_head("parser", PARSER_BYTES, PARSER_PURPOSE)]


def _processes(spec: JobSpec) -> int:
    agent = spec.rollout.agent
    return agent.processes if agent is not None and not agent.is_service else 0


def cpu_engine_bytes(spec: JobSpec, facts: Facts) -> int:
    """Return the memory of a CPU engine: vLLM, weights and KV cache."""
    if not facts.parameters:
        return GIB
    return GIB + weights_bytes(spec, facts) + cpu_kv_cache(spec, facts)


def _capped_cpu(spec: JobSpec, defaults: Mapping[Device, str], more: float = 0.0) -> str:
    """Return the default CPUs of a pod plus `more`, capped at resources.cpu."""
    default = defaults[spec.resources.device]
    if more:
        default = f"{round(parse_quantity(default) + more, 3):g}"
    return min(filter(None, [default, spec.resources.cpu]), key=parse_quantity)


def _engine_term(spec: JobSpec, facts: Facts, gpus: int) -> SizingTerm:
    if gpus:
        reason = f"{gpus} GPUs × 4 GiB of CUDA processes"
        return _rollout("processes", gpus * PROCESS_BYTES_PER_GPU, reason)
    engine = GIB + cpu_engine_bytes(spec, facts)
    return _rollout(
        "engine", engine, with_model_note("1 GiB each for Ray and vLLM, weights, KV cache", facts)
    )


def _dataset(spec: JobSpec, facts: Facts) -> int:
    return facts.rows * spec.data.max_prompt_length * TEXT_BYTES_PER_TOKEN
