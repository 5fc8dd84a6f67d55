from typing import Any

import pytest

from raggrpo_api.memory.arithmetic import GIB, MIB
from raggrpo_api.status.sizing import PodRole, Sizing
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.sizing.size import size, sizing_for
from raggrpo_operator.core.spec.quantity import parse_quantity
from raggrpo_operator.core.spec.resolve import resolve
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, make_job

GPUS8 = {"gpusPerNode": 8, "gpuMemoryGib": 80}
CPU = {"device": "CPU"}
APART = {"placement": "Disaggregated"}
SPLIT = {"gpusPerNode": 4, "gpuMemoryGib": 80, "rolloutGpus": 4} | APART
ON_BOTH = pytest.mark.parametrize(
    ("resources", "device"), [(GPUS8, "GPU"), (CPU, "CPU")], ids=["gpu", "cpu"]
)
SAMPLES = 128 * 3 * 1536 * 12
DATASET = 10_000 * 1024 * 8


def sized(facts: Facts | None = KNOWN_7B, **changes: Any) -> Sizing:
    return size(resolve(make_job(changes), facts).spec, facts)


def terms_of(sizing: Sizing, resource: str) -> dict[str, int]:
    return {term.name: term.bytes for term in sizing.terms if term.resource == resource}


def rounded_up(amount: str, terms: dict[str, int], unit: int) -> bool:
    return parse_quantity(amount) % unit == 0 <= parse_quantity(amount) - sum(terms.values()) < unit


@ON_BOTH
def test_head_memory_covers_ray_driver_dataset_samples_and_shm(
    resources: dict[str, Any], device: str
) -> None:
    sizing = sized(resources=resources)
    head, terms = sizing_for(sizing, PodRole.HEAD), terms_of(sizing, "headMemory")
    ray, driver = {"GPU": (2 * GIB, 4 * GIB), "CPU": (1536 * MIB, 1536 * MIB)}[device]
    shm = int(parse_quantity(head.shm))
    others = ray + driver + DATASET + 12 * SAMPLES + shm

    assert terms == {
        "ray": ray,
        "driver": driver,
        "dataset": DATASET,
        "samples": 12 * SAMPLES,  # two steps, with six times the packed bytes
        "shm": shm,
        "pageCache": int(0.1 * others),
    }
    assert rounded_up(head.memory, terms, {"GPU": GIB, "CPU": 64 * MIB}[device])


@ON_BOTH
def test_preflight_memory_covers_checks_and_dataset(resources: dict[str, Any], device: str) -> None:
    sizing = sized(resources=resources)
    terms = terms_of(sizing, "preflightMemory")
    assert terms == {"checks": {"GPU": 4 * GIB, "CPU": 2 * GIB}[device], "dataset": DATASET}
    unit = {"GPU": GIB, "CPU": 64 * MIB}[device]
    assert rounded_up(sizing_for(sizing, PodRole.PREFLIGHT).memory, terms, unit)


def test_gpu_rollout_pod_memory_and_shm_cover_their_terms() -> None:
    sizing = sized(resources=SPLIT, rollout={"tensorParallelSize": 2})
    rollout, terms = sizing_for(sizing, PodRole.ROLLOUT), terms_of(sizing, "rolloutMemory")
    shm = terms_of(sizing, "rolloutShm")

    assert (rollout.replicas, rollout.gpus) == (2, 2)
    weights = 2 * 7_600_000_000
    others = {
        "rayObjectStore": int((2 * GIB + weights) / 0.95),
        "weightSync": weights,
        "nccl": GIB,
        "vllm": 2 * GIB,
    }
    assert shm == others | {"margin": int(0.2 * sum(others.values()))}
    assert rounded_up(rollout.shm, shm, GIB)
    held = 2 * 4 * GIB + int(parse_quantity(rollout.shm))
    assert terms == {
        "processes": 2 * 4 * GIB,
        "shm": int(parse_quantity(rollout.shm)),
        "pageCache": int(0.1 * held),
    }
    assert rounded_up(rollout.memory, terms, GIB)


def test_rollout_pod_shm_grows_with_tensor_parallel_size() -> None:
    sizing = sized(resources=SPLIT | {"rolloutGpus": 16}, rollout={"tensorParallelSize": 16})
    assert terms_of(sizing, "rolloutShm")["vllm"] == 240 * MIB * 17


@pytest.mark.parametrize(
    ("facts", "model"),
    [
        (None, 0),
        (KNOWN_TINY, 4 * 560_000 + 256 * 1536 * (2 * 3 * 4 * 32 * 4)),  # weights and KV cache
    ],
    ids=["unknown", "known"],
)
def test_cpu_rollout_pod_memory_terms_cover_ray_vllm_and_model(
    facts: Facts | None, model: int
) -> None:
    sizing = sized(facts, resources=CPU | APART)
    rollout, terms = sizing_for(sizing, PodRole.ROLLOUT), terms_of(sizing, "rolloutMemory")
    assert rollout.gpus == 0
    assert terms["engine"] == 2 * GIB + model
    assert rounded_up(rollout.memory, terms, 64 * MIB)


def test_specified_memory_and_shm_apply_to_rollout_pods() -> None:
    given = sized(resources=SPLIT | {"memory": "99Gi", "shmSize": "33Gi"})
    rollout = sizing_for(given, PodRole.ROLLOUT)
    assert (rollout.memory, rollout.shm) == ("99Gi", "33Gi")
    assert terms_of(given, "rolloutMemory")["given"] == 99 * GIB
    assert terms_of(given, "rolloutShm")["given"] == 33 * GIB


@pytest.mark.parametrize("resources", [GPUS8, CPU], ids=["gpu", "cpu"])
def test_colocated_engines_do_not_need_rollout_pods(resources: dict[str, Any]) -> None:
    assert PodRole.ROLLOUT not in {each.role for each in sized(resources=resources).pods}


@pytest.mark.parametrize(
    ("changes", "cpu"),
    [
        ({"resources": SPLIT, "rollout": {"tensorParallelSize": 2}}, "16"),
        ({"resources": SPLIT | {"cpu": "12"}}, "12"),
        ({"resources": CPU | APART}, "1"),
    ],
    ids=["of two GPUs", "as specified", "without GPUs"],
)
def test_rollout_pod_has_cpus_for_its_gpus(changes: dict[str, Any], cpu: str) -> None:
    assert sizing_for(sized(**changes), PodRole.ROLLOUT).cpu == cpu


@pytest.mark.parametrize(("gpus", "cpu"), [(0, "8"), (1, "8"), (3, "24")])
def test_trainer_pod_has_eight_cpus_per_gpu(gpus: int, cpu: str) -> None:
    assert sized(resources={"gpusPerNode": gpus}).cpu == cpu
