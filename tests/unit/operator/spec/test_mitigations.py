from typing import Any

import pytest
from pydantic import ValidationError

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.restart_state import Remedies
from raggrpo_operator.core.spec.mitigations import (
    MAX_MITIGATIONS,
    Mitigation,
    apply_mitigations,
    next_mitigation,
)
from raggrpo_operator.core.spec.resolve import resolve
from support.builders.operator.jobs import make_job

OOM = Cause.CUDA_OUT_OF_MEMORY


def make_spec(changes: dict[str, Any] | None = None) -> JobSpec:
    return resolve(make_job(changes)).spec


def applied_until_nothing_is_left(
    cause: Cause, spec: JobSpec, short_of: Shortage | None = None
) -> list[str]:
    applied: list[str] = []
    while (step := next_mitigation(cause, applied, spec, short_of)) is not None:
        applied.append(step)
        assert len(applied) <= MAX_MITIGATIONS
    return applied


@pytest.mark.row("A31")
def test_cuda_out_of_memory_applies_mitigations_in_order() -> None:
    applied = applied_until_nothing_is_left(OOM, make_spec())

    assert applied == [
        Mitigation.MICRO_BATCH_HALVED,
        Mitigation.GRADIENT_CHECKPOINTING,
        Mitigation.LOWER_GPU_MEMORY_UTILIZATION,
        Mitigation.MICRO_BATCH_HALVED,  # 16384 → 8192 → 4096
        Mitigation.MICRO_BATCH_HALVED,  # → 2048, the last that holds 1536
        Mitigation.LOWER_GPU_MEMORY_UTILIZATION,
        Mitigation.LOWER_GPU_MEMORY_UTILIZATION,  # → 0.3
    ]
    lowered = apply_mitigations(make_spec(), applied)
    assert lowered.training.tokens_per_micro_batch == 2048
    assert lowered.training.gradient_checkpointing
    assert lowered.rollout.gpu_memory_utilization == 0.3


HOST = Cause.HOST_OUT_OF_MEMORY
EIGHT_GPUS = {"resources": {"gpusPerNode": 8}}
ON_CPU = {"resources": {"device": "CPU", "ranks": 2}, "rollout": {"n": 8}}


@pytest.mark.row("D12")
@pytest.mark.parametrize(
    ("cause", "short_of", "changes", "steps"),
    [
        (OOM, Shortage.ENGINE, {}, "LowerGpuMemoryUtilization SequencesHalved"),
        (OOM, Shortage.KV_CACHE, {}, "RaiseGpuMemoryUtilization EnforceEager SequencesHalved"),
        (OOM, Shortage.TRAINING_STATE, {}, "LowerGpuMemoryUtilization"),
        (OOM, Shortage.STEP, {}, "MicroBatchHalved GradientCheckpointing"),
        (HOST, Shortage.HEAD_HOST, {}, "WorkersHalved"),
        (HOST, Shortage.TRAINER_HOST, EIGHT_GPUS, "LoadInTurns"),
        (
            HOST,
            Shortage.TRAINER_HOST,
            ON_CPU,
            "LoadInTurns MicroBatchHalved GradientCheckpointing SequencesHalved",
        ),
        (HOST, Shortage.ROLLOUT_HOST, ON_CPU, "SequencesHalved"),
        (HOST, Shortage.ROLLOUT_HOST, EIGHT_GPUS, ""),
        (HOST, None, EIGHT_GPUS, ""),
    ],
)
def test_mitigations_depend_on_shortage(
    cause: Cause, short_of: Shortage | None, changes: dict[str, Any], steps: str
) -> None:
    spec = make_spec(changes)
    tried = applied_until_nothing_is_left(cause, spec, short_of)

    assert list(dict.fromkeys(tried)) == steps.split()
    before = spec
    for number in range(1, len(tried) + 1):
        after = apply_mitigations(spec, tried[:number])
        assert after != before  # each mitigation has an effect
        before = after


def test_gpu_memory_utilization_is_not_raised_after_mitigation_lowered_it() -> None:
    applied = [Mitigation.LOWER_GPU_MEMORY_UTILIZATION]
    step = next_mitigation(OOM, applied, make_spec(), Shortage.KV_CACHE)
    assert step is Mitigation.ENFORCE_EAGER


def test_head_memory_shortage_halves_data_workers() -> None:
    spec = make_spec()
    applied = applied_until_nothing_is_left(HOST, spec, Shortage.HEAD_HOST)
    assert applied == [Mitigation.WORKERS_HALVED] * 3  # 8 → 4 → 2 → 1
    assert apply_mitigations(spec, applied).data.num_workers == 1


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"preset": "MemoryLimited"}, Mitigation.GRADIENT_CHECKPOINTING),
        ({"resources": {"device": "CPU"}}, Mitigation.LOWER_GPU_MEMORY_UTILIZATION),
        ({"rollout": {"gpuMemoryUtilization": 0.3}}, Mitigation.LOWER_GPU_MEMORY_UTILIZATION),
        ({"training": {"tokensPerMicroBatch": 2000}}, Mitigation.MICRO_BATCH_HALVED),
    ],
)
def test_inapplicable_mitigations_are_skipped(changes: dict[str, Any], absent: Mitigation) -> None:
    assert absent not in applied_until_nothing_is_left(OOM, make_spec(changes))


@pytest.mark.parametrize("policy", ["Restart", "Fail"])
def test_mitigations_require_on_out_of_memory_mitigate(policy: str) -> None:
    assert next_mitigation(OOM, [], make_spec({"recovery": {"onOutOfMemory": policy}})) is None


def test_causes_other_than_out_of_memory_do_not_have_mitigations() -> None:
    assert next_mitigation(Cause.NON_FINITE, [], make_spec()) is None


def test_mitigations_are_limited_to_length_of_status_list() -> None:
    spec = make_spec({"training": {"tokensPerMicroBatch": 10**8}, "data.maxPromptLength": 8})
    halved = [Mitigation.MICRO_BATCH_HALVED]

    assert Remedies(mitigations=halved * MAX_MITIGATIONS)
    with pytest.raises(ValidationError):
        Remedies(mitigations=halved * (MAX_MITIGATIONS + 1))
    assert next_mitigation(OOM, halved * (MAX_MITIGATIONS - 1), spec) is not None
    assert next_mitigation(OOM, halved * MAX_MITIGATIONS, spec) is None


@pytest.mark.parametrize(("tokens", "first"), [(3071, False), (3072, True)])
def test_micro_batch_budget_is_halved_while_longest_sequence_fits(tokens: int, first: bool) -> None:
    spec = make_spec({"training": {"tokensPerMicroBatch": tokens}})  # prompt + response = 1536
    assert (next_mitigation(OOM, [], spec) is Mitigation.MICRO_BATCH_HALVED) is first


@pytest.mark.parametrize(("sequences", "halved"), [(16, [8]), (15, []), (35, [17, 8])])
def test_concurrent_sequences_are_halved_down_to_eight(sequences: int, halved: list[int]) -> None:
    spec = make_spec({"resources": {"device": "CPU"}, "rollout": {"maxNumSeqs": sequences}})
    applied = applied_until_nothing_is_left(HOST, spec, Shortage.ROLLOUT_HOST)
    assert applied == [Mitigation.SEQUENCES_HALVED] * len(halved)
    after = [
        apply_mitigations(spec, applied[: n + 1]).rollout.max_num_seqs for n in range(len(halved))
    ]
    assert after == halved


def test_mitigation_halving_stops_at_one() -> None:
    smallest = {
        "training": {"tokensPerMicroBatch": 1},
        "rollout": {"maxNumSeqs": 1},
        "data.numWorkers": 1,
    }
    steps = [
        Mitigation.MICRO_BATCH_HALVED,
        Mitigation.SEQUENCES_HALVED,
        Mitigation.WORKERS_HALVED,
    ]
    spec = make_spec(smallest)
    assert apply_mitigations(spec, steps) == spec


@pytest.mark.parametrize(
    ("cause", "short_of", "changes", "absent"),
    [
        (OOM, Shortage.KV_CACHE, {"rollout": {"enforceEager": True}}, Mitigation.ENFORCE_EAGER),
        (OOM, Shortage.KV_CACHE, {"resources": {"device": "CPU"}}, Mitigation.ENFORCE_EAGER),
        (
            OOM,
            Shortage.KV_CACHE,
            {"resources": {"device": "CPU"}},
            Mitigation.RAISE_GPU_MEMORY_UTILIZATION,
        ),
        (
            OOM,
            Shortage.KV_CACHE,
            {"rollout": {"gpuMemoryUtilization": 0.7}},
            Mitigation.RAISE_GPU_MEMORY_UTILIZATION,
        ),
        (HOST, Shortage.TRAINER_HOST, {"resources": {"gpusPerNode": 1}}, Mitigation.LOAD_IN_TURNS),
        (
            HOST,
            Shortage.TRAINER_HOST,
            EIGHT_GPUS | {"training": {"loadInTurns": True}},
            Mitigation.LOAD_IN_TURNS,
        ),
    ],
)
def test_mitigations_without_effect_are_skipped(
    cause: Cause, short_of: Shortage, changes: dict[str, Any], absent: Mitigation
) -> None:
    assert absent not in applied_until_nothing_is_left(cause, make_spec(changes), short_of)


def test_gpu_memory_utilization_is_not_lowered_below_minimum() -> None:
    spec = make_spec({"rollout": {"gpuMemoryUtilization": 0.35}})
    lowered = apply_mitigations(spec, [Mitigation.LOWER_GPU_MEMORY_UTILIZATION])
    assert lowered.rollout.gpu_memory_utilization == 0.3


def test_gpu_memory_utilization_mitigation_is_exact_to_thousandths() -> None:
    spec = make_spec({"rollout": {"gpuMemoryUtilization": 0.555}})
    lowered = apply_mitigations(spec, [Mitigation.LOWER_GPU_MEMORY_UTILIZATION])
    raised = apply_mitigations(spec, [Mitigation.RAISE_GPU_MEMORY_UTILIZATION])
    assert lowered.rollout.gpu_memory_utilization == 0.455
    assert raised.rollout.gpu_memory_utilization == 0.655


def test_lowering_mitigation_does_not_raise_gpu_memory_utilization() -> None:
    spec = make_spec({"rollout": {"gpuMemoryUtilization": 0.2}})
    lowered = apply_mitigations(spec, [Mitigation.LOWER_GPU_MEMORY_UTILIZATION])
    assert lowered.rollout.gpu_memory_utilization == 0.2


def test_unknown_mitigation_raises_value_error() -> None:
    with pytest.raises(ValueError, match="Prayer"):
        apply_mitigations(make_spec(), ["Prayer"])
