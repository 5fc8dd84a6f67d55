"""What the rules say of memory where it is just enough, and of whose memory it is."""

from collections.abc import Callable
from typing import Any

import pytest

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import estimate, size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Reason, Violation
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, make_job

THREE = {"resources": {"gpusPerNode": 3, "gpuMemoryGib": 80}}
SHARED = THREE | {"rollout": {"tensorParallelSize": 3}}
GPUS8 = {"gpusPerNode": 8, "gpuMemoryGib": 80}
APART = {"placement": "Disaggregated", "rolloutGpus": 8}
CORPUS = {"corpus": "/mnt/runs/corpus.jsonl"}
Measure = Callable[[JobSpec, Facts], int]


def found(changes: dict[str, Any], facts: Facts) -> dict[Reason, Violation]:
    job = make_job(changes)
    return {each.reason: each for each in violations(job, resolve(job, facts), facts)}


def facts_where(measure: Measure, value: int, changes: dict[str, Any]) -> Facts:
    """Return a model of which `measure`, which grows with its parameters, is this value."""
    spec = resolve(make_job(changes)).spec
    for vocabulary in range(1, 200):
        low, high = 0, 10**12
        while low < high:
            middle = (low + high) // 2
            facts = Facts(
                parameters=middle, vocabulary=vocabulary, hidden_size=1, layers=2000, kv_heads=1,
                head_size=1,
            )  # fmt: skip
            if measure(spec, facts) == value:
                return facts
            low, high = (middle + 1, high) if measure(spec, facts) < value else (low, middle)
    raise AssertionError("no such model")


@pytest.mark.parametrize("short", [0, 1])
@pytest.mark.parametrize(
    ("measure", "changes", "reason"),
    [
        (gpu_memory.training_state_excess, THREE, Reason.TRAINING_STATE_DOES_NOT_FIT),
        (gpu_memory.engine_excess, SHARED, Reason.WEIGHTS_DO_NOT_FIT),
    ],
    ids=["training state", "engine"],
)
def test_what_fits_to_the_byte_fits(
    measure: Measure, changes: dict[str, Any], reason: Reason, short: int
) -> None:
    facts = facts_where(measure, short, changes)
    assert (reason in found(changes, facts)) is bool(short)


@pytest.mark.parametrize(("lacking", "is_told"), [(0, True), (1, False)])
def test_activations_are_judged_only_where_there_is_room_at_all(
    lacking: int, is_told: bool
) -> None:
    facts = facts_where(lambda *known: -gpu_memory.activation_room(*known), lacking, THREE)
    assert (Reason.ACTIVATIONS_MAY_NOT_FIT in found(THREE, facts)) is is_told


@pytest.mark.parametrize(("placement", "share"), [({}, "48.0 GiB"), (APART, "0 B")])
def test_an_engine_apart_takes_nothing_from_the_training_state(
    placement: dict[str, Any], share: str
) -> None:
    facts = KNOWN_7B.model_copy(update={"parameters": 70_000_000_000})
    told = found({"resources": GPUS8 | placement}, facts)[Reason.TRAINING_STATE_DOES_NOT_FIT]
    assert f"80.0 GiB minus {share} for the engine" in told.message


@pytest.mark.parametrize(
    ("gib", "labelled", "whose"),
    [
        (80, 0, "80.0 GiB"),
        (80, 24 * 1024, "80.0 GiB"),
        (0, 24 * 1024, "24.0 GiB (from the nodes' labels)"),
        (0, 0, "268.2 GiB (the largest of any GPU)"),
    ],
)
def test_a_refusal_says_whose_memory_it_is(gib: int, labelled: int, whose: str) -> None:
    facts = KNOWN_7B.model_copy(update={"parameters": 400_000_000_000, "gpu_memory_mib": labelled})
    told = found({"resources": GPUS8 | {"gpuMemoryGib": gib}}, facts)
    assert f"; {whose} minus " in told[Reason.TRAINING_STATE_DOES_NOT_FIT].message


@pytest.mark.parametrize(
    ("longest", "recomputed", "remedy"),
    [
        (
            4173,
            False,
            "training.tokensPerMicroBatch: 4173, or training.gradientCheckpointing: true",
        ),
        (4174, False, "training.gradientCheckpointing: true"),
    ],
)
def test_a_budget_is_suggested_only_if_it_holds_the_longest(
    longest: int, recomputed: bool, remedy: str
) -> None:
    changes = {
        "resources": GPUS8 | {"gpuMemoryGib": 48},
        "data.maxPromptLength": longest - 512,
        "training.gradientCheckpointing": recomputed,
    }
    assert found(changes, KNOWN_7B)[Reason.ACTIVATIONS_MAY_NOT_FIT].remedy == remedy


def test_without_a_setting_that_helps_more_gpus_are_suggested() -> None:
    changes = {
        "resources": {"gpusPerNode": 8, "gpuMemoryGib": 40},
        "data.maxPromptLength": 200_000,
        "training": {
            "totalSteps": 1, "gradientCheckpointing": True, "tokensPerMicroBatch": 400_000,
        },
    }  # fmt: skip
    told = found(changes, KNOWN_7B)[Reason.ACTIVATIONS_MAY_NOT_FIT]
    assert told.remedy == "more GPUs, or shorter prompts and responses"


def test_weights_that_do_not_fit_are_told_with_the_cache_of_one_sequence() -> None:
    told = found({"resources": {"gpusPerNode": 8, "gpuMemoryGib": 24}}, KNOWN_7B)
    message = told[Reason.WEIGHTS_DO_NOT_FIT].message
    assert "weights of 14.2 GiB, 2 GiB of graphs and 84.0 MiB of KV cache" in message


def test_nothing_is_told_of_gpus_without_them_or_a_model() -> None:
    large = KNOWN_7B.model_copy(update={"parameters": 10**12, "rows": 10**9})
    on_cpus = found({"resources": {"device": "CPU"}}, large)
    of_gpus = {Reason.TRAINING_STATE_DOES_NOT_FIT, Reason.GPU_MEMORY_UNKNOWN}
    assert not of_gpus & on_cpus.keys()
    unknown = {"resources": {"gpusPerNode": 8}}
    assert found(unknown, Facts()) == {}
    assert found(unknown, Facts(parameters=1)).keys() == {Reason.GPU_MEMORY_UNKNOWN}


@pytest.mark.parametrize(("more", "is_warned"), [(0, False), (-1, True)])
@pytest.mark.parametrize("resource", ["memory", "shm"])
def test_an_amount_that_equals_the_estimate_covers_it(
    resource: str, more: int, is_warned: bool
) -> None:
    resources = {"shmSize": "64Gi"} if resource == "memory" else {}
    sizing = size(resolve(make_job({"resources": GPUS8 | resources}), KNOWN_TINY).spec, KNOWN_TINY)
    name = {"memory": "memory", "shm": "shmSize"}[resource]
    given = {name: str(estimate(sizing, resource) + more)}
    told = found({"resources": GPUS8 | resources | given}, KNOWN_TINY)
    assert (Reason.MEMORY_BELOW_ESTIMATE in told) is is_warned


@pytest.mark.parametrize(("more", "is_refused"), [(0, False), (-1, True)])
def test_a_retriever_whose_memory_equals_the_need_has_enough(more: int, is_refused: bool) -> None:
    kb = {"name": "kb", "managed": CORPUS | {"memory": str(4 * GIB + GIB // 2 + more)}}
    actor = {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": "http://a:1/chat"}
    changes = {"retrieval": {"mode": "Prompt", "endpoints": [actor, kb]}}
    told = found(changes, Facts(corpus_bytes=GIB))
    assert (Reason.RETRIEVER_MEMORY_TOO_SMALL in told) is is_refused
