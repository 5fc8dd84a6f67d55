from typing import Any

import pytest

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import GIB, MIB
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.sizing import PodRole, PodSizing, Sizing
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.sizing.shared_memory import object_store_bytes
from raggrpo_operator.core.sizing.size import estimate, size, sizing_for
from raggrpo_operator.core.spec.quantity import (
    format_bytes,
    format_count,
    format_size,
    parse_quantity,
)
from raggrpo_operator.core.spec.resolve import resolve
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, SAMPLES, make_job, make_sample

GPUS8 = {"gpusPerNode": 8, "gpuMemoryGib": 80}
CPU = {"device": "CPU"}


def make_spec(facts: Facts | None = None, **changes: Any) -> JobSpec:
    return resolve(make_job(changes), facts).spec


def terms_of(sizing: Sizing, resource: str) -> dict[str, int]:
    return {term.name: term.bytes for term in sizing.terms if term.resource == resource}


@pytest.mark.parametrize(
    ("text", "amount"),
    [("16", 16.0), ("500m", 0.5), ("1.5Gi", 1.5 * GIB), ("64Mi", 64 * MIB), ("2k", 2000.0),
     ("3M", 3e6), ("2G", 2e9), ("1T", 1e12), ("1Ki", 2.0**10), ("2Ti", 2.0**41)],
)  # fmt: skip
def test_quantities_are_parsed_like_kubernetes(text: str, amount: float) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "1e3", "64 GiB", "-1", "1gi"])
def test_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [(GIB, GIB, "1Gi"), (GIB + 1, GIB, "2Gi"), (65 * MIB, 64 * MIB, "128Mi"), (1, 1, "1"),
     (1, 1024, "1Ki"), (1025, 1, "1025"), (1, MIB, "1Mi"), (1.5 * GIB, MIB, "1536Mi")],
)  # fmt: skip
def test_bytes_are_rounded_up_to_whole_units(amount: float, unit: int, text: str) -> None:
    assert format_bytes(amount, unit) == text
    assert parse_quantity(text) >= amount


def test_formatted_size_has_one_decimal_from_one_kib() -> None:
    assert [format_size(x) for x in (0, 1536, 1.5 * GIB)] == ["0 B", "1.5 KiB", "1.5 GiB"]
    units = [format_size(x) for x in (1023, 1024, MIB, GIB)]
    assert units == ["1023 B", "1.0 KiB", "1.0 MiB", "1.0 GiB"]


def test_formatted_count_has_one_decimal_from_one_thousand() -> None:
    counts = [format_count(x) for x in (0, 999, 1000, 80_740_352, 7_615_000_000, 70_553_706_496)]
    assert counts == ["0", "999", "1.0k", "80.7M", "7.6B", "70.6B"]


@pytest.mark.row("C4")
def test_gpu_memory_matches_worked_example() -> None:
    spec = make_spec(KNOWN_7B, resources=GPUS8)

    assert gpu_memory.training_state(spec, KNOWN_7B) == 15_200_000_000  # 16 × 7.6e9 / 8
    assert gpu_memory.engine_weights(spec, KNOWN_7B) == 15_200_000_000  # 2 × 7.6e9
    assert gpu_memory.kv_bytes_per_token(spec, KNOWN_7B) == 57_344  # 2 × 28 × 4 × 128 × 2
    assert gpu_memory.engine_share(spec, KNOWN_7B) == int(80 * GIB * 0.6)
    assert gpu_memory.usable_memory(spec, KNOWN_7B) == int(80 * GIB * 0.92)
    assert gpu_memory.training_room(spec, KNOWN_7B) == (
        int(80 * GIB * 0.92) - int(80 * GIB * 0.6) - 6 * 152_064 * 3584
    )


@pytest.mark.parametrize(
    ("training", "per_token"),
    [
        ({}, 34 * 28 * 3584),
        ({"gradientCheckpointing": True}, (2 * 28 + 34) * 3584),
        ({"precision": "FP32"}, 2 * 34 * 28 * 3584),
    ],
)
def test_activation_bytes_per_token_match_formula(training: dict[str, Any], per_token: int) -> None:
    spec = make_spec(resources=GPUS8, training={"totalSteps": 1} | training)
    facts = KNOWN_7B.model_copy(update={"mlp_size": 0})
    assert gpu_memory.activation_bytes_per_token(spec, facts) == per_token


@pytest.mark.parametrize(("training", "in_layer"), [({}, 28), ({"gradientCheckpointing": True}, 1)])
def test_activations_depend_on_mlp_size(training: dict[str, Any], in_layer: int) -> None:
    spec = make_spec(resources=GPUS8, training={"totalSteps": 1} | training)
    layer = 16 * 3584 + 4 * (28 + 4) * 128 + 8 * 18_944
    kept = 2 * 28 * 3584 if training else 0
    assert gpu_memory.activation_bytes_per_token(spec, KNOWN_7B) == kept + in_layer * layer


@pytest.mark.parametrize(
    ("training", "tokens"),
    [
        ({}, 16384),
        ({"tokensPerMicroBatch": 10**8}, 128 * (1024 + 3 * 512)),
        ({"tokensPerMicroBatch": 10**8, "rowLayout": "Padded"}, 128 * 3 * 1536),
        ({"tokensPerMicroBatch": 10**8, "miniBatchPrompts": 2}, 2 * (1024 + 3 * 512)),
    ],
)
def test_micro_batch_is_limited_by_budget_and_update(training: dict[str, Any], tokens: int) -> None:
    spec = make_spec(training={"totalSteps": 1} | training)
    assert gpu_memory.micro_batch_tokens(spec) == tokens


def test_activation_memory_includes_one_logit_chunk() -> None:
    spec = make_spec(resources=GPUS8, training={"totalSteps": 1, "gradientCheckpointing": True})
    layers = 16384 * gpu_memory.activation_bytes_per_token(spec, KNOWN_7B)
    assert gpu_memory.activations(spec, KNOWN_7B) == layers + 3 * 4 * 2**27


@pytest.mark.parametrize("resources", [CPU, GPUS8], ids=["cpu", "gpu"])
def test_large_rollout_batch_increases_object_store(resources: dict[str, Any]) -> None:
    large: dict[str, Any] = {
        "data.trainBatchSize": 65536,
        "rollout": {"n": 8},
        "resources": resources,
    }
    assert object_store_bytes(make_spec(**large)) == 2 * 65536 * 8 * 1536 * 12


def test_cpu_pod_memory_covers_driver_ranks_training_and_engine() -> None:
    spec = make_spec(KNOWN_TINY, resources=CPU | {"ranks": 2})
    memory = terms_of(size(spec, KNOWN_TINY), "memory")

    state = 16 * 560_000 // 2 + 16384 * 2 * 34 * 3 * 128 + 2 * 4 * 16384 * 260
    assert memory["driver"] == GIB
    assert memory["ranks"] == 2 * GIB
    assert memory["training"] == 2 * state
    cache = 256 * 1536 * (2 * 3 * 4 * 32 * 4)  # maxNumSeqs × length × bytes per token
    assert memory["engine"] == GIB + 4 * 560_000 + cache
    assert memory["staging"] == 12 * 560_000
    assert memory["dataset"] == 8000 * 1024 * 4


def test_gpu_pod_memory_covers_processes_and_model_staging() -> None:
    spec = make_spec(KNOWN_7B, resources=GPUS8 | {"nodes": 2})
    memory = terms_of(size(spec, KNOWN_7B), "memory")
    assert memory["processes"] == 8 * 4 * GIB
    assert memory["staging"] == 8 * 4 * 7_600_000_000  # eight ranks read the model at once
    in_turns = make_spec(KNOWN_7B, resources=GPUS8 | {"nodes": 2}, **{"training.loadInTurns": True})
    memory = terms_of(size(in_turns, KNOWN_7B), "memory")
    assert memory["staging"] == 12 * 7_600_000_000 // 2  # half of the shards


def test_kv_cache_is_remaining_engine_memory() -> None:
    gpu = terms_of(size(make_spec(KNOWN_7B, resources=GPUS8), KNOWN_7B), "gpu")
    assert gpu["kvCache"] == int(80 * GIB * 0.6) - 15_200_000_000 - 2 * GIB


def test_object_store_includes_weights_only_with_several_pods() -> None:
    one = make_spec(KNOWN_7B, resources=GPUS8)
    two = make_spec(KNOWN_7B, resources=GPUS8 | {"nodes": 2})
    assert object_store_bytes(one, KNOWN_7B) == 2 * GIB
    assert object_store_bytes(two, KNOWN_7B) == 2 * GIB + 2 * 7_600_000_000
    assert terms_of(size(two, KNOWN_7B), "shm")["weightSync"] == 8 * 2 * 7_600_000_000


def test_reference_model_adds_four_bytes_per_parameter() -> None:
    with_kl = make_spec(resources=GPUS8, algorithm={"klCoefficient": 0.01})
    assert gpu_memory.training_state(with_kl, KNOWN_7B) == 20 * 7_600_000_000 // 8


def test_tensor_parallel_splits_weights_and_cache() -> None:
    spec = make_spec(resources=GPUS8, rollout={"tensorParallelSize": 4})
    assert gpu_memory.engine_weights(spec, KNOWN_7B) == 3_800_000_000
    assert gpu_memory.kv_bytes_per_token(spec, KNOWN_7B) == 57_344 // 4


@pytest.mark.row("A5")
def test_shm_covers_object_store_nccl_vllm_and_weight_sync() -> None:
    shm = terms_of(size(make_spec(KNOWN_7B, resources=GPUS8), KNOWN_7B), "shm")

    assert shm["rayObjectStore"] == int(2 * GIB / 0.95)
    assert shm["nccl"] == GIB
    assert shm["vllm"] == 240 * MIB * 8 * 2
    assert shm["weightSync"] == 3 * 2 * 7_600_000_000  # the newest two and the next
    assert shm["margin"] == int(0.2 * (sum(shm.values()) - shm["margin"]))


def test_sizing_totals_cover_terms_and_are_rounded_up() -> None:
    sizing = size(make_spec(KNOWN_7B, resources=GPUS8), KNOWN_7B)

    for resource, text in (("shm", sizing.shm), ("memory", sizing.memory)):
        total = sum(terms_of(sizing, resource).values())
        assert estimate(sizing, resource) == total
        assert 0 <= parse_quantity(text) - total < GIB
    assert parse_quantity(sizing.shm) < parse_quantity(sizing.memory)
    assert terms_of(sizing, "memory")["shm"] == parse_quantity(sizing.shm)


def test_quickstart_fits_into_laptop_memory() -> None:
    sizing = size(make_spec(KNOWN_TINY, resources=CPU), KNOWN_TINY)
    assert sizing.gpus == 0
    assert sizing.cpu == "2"
    assert parse_quantity(sizing.shm) <= 256 * MIB
    assert parse_quantity(sizing.memory) <= 6 * GIB


@pytest.mark.parametrize("resources", [CPU, GPUS8], ids=["cpu", "gpu"])
def test_object_store_is_within_its_share_of_shm(resources: dict[str, Any]) -> None:
    spec = make_spec(resources=resources)
    store = object_store_bytes(spec)
    assert store >= 75 * MIB  # Ray's own minimum
    assert store <= 0.95 * parse_quantity(size(spec).shm)


def test_object_store_is_limited_by_specified_shm() -> None:
    sizing = size(make_spec(KNOWN_7B, resources=GPUS8 | {"shmSize": "1Gi"}), KNOWN_7B)
    assert sizing_for(sizing, PodRole.TRAINER).object_store == int(0.95 * GIB)
    assert sizing_for(sizing, PodRole.HEAD).object_store == 2 * GIB


def test_object_store_has_128_mib_on_cpu() -> None:
    assert object_store_bytes(make_spec(resources=CPU)) == 128 * MIB


@pytest.mark.parametrize(
    ("resources", "tensor_parallel", "rings"),
    [
        ({"gpusPerNode": 1}, 1, 2 * GIB),
        (GPUS8 | {"nodes": 2}, 1, 240 * MIB * 8 * 2),
        (GPUS8, 8, 240 * MIB * 9),
        (GPUS8 | {"nodes": 2}, 16, 240 * MIB * 17),
    ],
    ids=["at least 2 GiB", "engines of one pod", "one engine", "an engine over two pods"],
)
def test_vllm_shm_grows_with_engines_and_tensor_parallel_size(
    resources: dict[str, Any], tensor_parallel: int, rings: int
) -> None:
    spec = make_spec(resources=resources, rollout={"tensorParallelSize": tensor_parallel})
    assert terms_of(size(spec), "shm")["vllm"] == rings


@pytest.mark.parametrize(
    ("gpus", "staging"),
    [(0, 4 * 7_600_000_000), (1, 12 * 7_600_000_000)],
    ids=["an export", "all shards"],
)
def test_trainer_pod_memory_covers_at_least_one_process(gpus: int, staging: int) -> None:
    sizing = size(make_spec(KNOWN_7B, resources={"gpusPerNode": gpus}), KNOWN_7B)
    memory, held = terms_of(sizing, "memory"), terms_of(sizing, "gpu")
    assert memory["processes"] == 4 * GIB
    assert memory["staging"] == staging
    assert held["weights"] == held["gradients"] == 4 * 7_600_000_000


def test_gpu_memory_terms_cover_training_and_engine() -> None:
    spec = make_spec(KNOWN_7B, resources=GPUS8)
    sizing = size(spec, KNOWN_7B)

    assert terms_of(sizing, "gpu") == {
        "weights": 3_800_000_000,
        "gradients": 3_800_000_000,
        "optimizer": 7_600_000_000,
        "unsharded": gpu_memory.unsharded_bytes(spec, KNOWN_7B),
        "activations": gpu_memory.activations(spec, KNOWN_7B),
        "syncCopies": 6 * 152_064 * 3584,
        "engineWeights": 15_200_000_000,
        "engineOverhead": 2 * GIB,
        "kvCache": int(80 * GIB * 0.6) - 15_200_000_000 - 2 * GIB,
        "fragmentation": 80 * GIB - int(80 * GIB * 0.92),
    }
    [room] = [each.reason for each in sizing.terms if each.name == "kvCache"]
    assert room == "room for 388 sequences of 1536 tokens, up to 256 concurrent"


def test_reference_model_is_separate_gpu_memory_term() -> None:
    spec = make_spec(KNOWN_7B, resources=GPUS8, algorithm={"klCoefficient": 0.01})
    held = terms_of(size(spec, KNOWN_7B), "gpu")
    assert list(held)[:4] == ["weights", "gradients", "optimizer", "reference"]
    assert held["reference"] == 3_800_000_000


WITH_ADAPTERS = KNOWN_7B.model_copy(
    update={"adapted_layers": 196, "adapter_parameters_per_rank": 28 * 90_112}
)


def lora_sizing(**changes: Any) -> Sizing:
    given = {"resources": GPUS8, "training.lora": {}, **changes}
    return size(make_spec(WITH_ADAPTERS, **given), WITH_ADAPTERS)


def test_gpu_terms_of_adapters_contain_frozen_weights_and_no_reference() -> None:
    sizing = lora_sizing(**{"algorithm.klCoefficient": 0.1})
    held, adapters = terms_of(sizing, "gpu"), 32 * 28 * 90_112

    assert {name: held[name] for name in [*held][:4]} == {
        "frozenWeights": 2 * 7_600_000_000 // 8,
        "weights": 4 * adapters // 8,
        "gradients": 4 * adapters // 8,
        "optimizer": 8 * adapters // 8,
    }
    assert "reference" not in held
    reasons = {term.name: term.reason for term in sizing.terms if term.resource == "gpu"}
    assert reasons["frozenWeights"] == "2 B per frozen parameter over 8 ranks"
    assert reasons["weights"] == "4 B per parameter of the adapters over 8 ranks"


def test_adapters_do_not_change_weight_sync_and_engine() -> None:
    full = size(make_spec(WITH_ADAPTERS, resources=GPUS8), WITH_ADAPTERS)
    lora = lora_sizing()
    for name in ("syncCopies", "engineWeights", "kvCache", "activations"):
        assert terms_of(lora, "gpu")[name] == terms_of(full, "gpu")[name]
    assert lora.shm == full.shm


def test_unsharded_memory_with_adapters_has_no_fp32_gradient_of_a_layer() -> None:
    full = size(make_spec(WITH_ADAPTERS, resources=GPUS8), WITH_ADAPTERS)
    embedding = 152_064 * 3584
    layer = (7_600_000_000 - embedding) // 28
    gathered = 2 * (embedding + 2 * layer)
    assert terms_of(full, "gpu")["unsharded"] == gathered + 4 * embedding
    assert terms_of(lora_sizing(), "gpu")["unsharded"] == gathered + 2 * layer + 4 * 32 * 90_112


def test_staging_with_adapters_covers_loading_and_export_instead_of_moments() -> None:
    one = {"resources": {"gpusPerNode": 1}}
    [staging] = [term for term in lora_sizing(**one).terms if term.name == "staging"]
    assert staging.bytes == 4 * 7_600_000_000
    assert "this pod's shards (12 B per trained parameter)" in staging.reason


def test_cpu_training_term_with_adapters_names_frozen_and_trained_parameters() -> None:
    sizing = lora_sizing(resources=CPU, **{"training.precision": "FP32"})
    [training] = [term for term in sizing.terms if term.name == "training"]
    state = 4 * 7_600_000_000 + 16 * 32 * 28 * 90_112
    spec = make_spec(WITH_ADAPTERS, resources=CPU, **{"training.precision": "FP32"})
    assert training.bytes == state + gpu_memory.activations(spec, WITH_ADAPTERS)
    assert training.reason.startswith(
        "4 B per frozen parameter, 16 B per parameter of the adapters and activations"
    )


def test_kv_cache_is_zero_if_weights_do_not_fit() -> None:
    spec = make_spec(KNOWN_7B, resources={"gpusPerNode": 8, "gpuMemoryGib": 24})
    assert terms_of(size(spec, KNOWN_7B), "gpu")["kvCache"] == 0


def test_model_is_sized_when_only_parameter_count_is_known() -> None:
    facts = Facts(parameters=7_600_000_000)
    sizing = size(make_spec(facts, resources=GPUS8), facts)
    [cache] = [each for each in sizing.terms if each.name == "kvCache"]
    assert cache.reason.startswith(f"room for {cache.bytes} sequences")


@pytest.mark.parametrize(
    ("resources", "gpus", "replicas"),
    [(CPU | {"gpusPerNode": 8}, 0, 1), (GPUS8, 8, 1), (GPUS8 | {"nodes": 2}, 8, 2)],
)
def test_trainer_pod_requests_all_gpus_per_node(
    resources: dict[str, Any], gpus: int, replicas: int
) -> None:
    trainer = sizing_for(size(make_spec(resources=resources)), PodRole.TRAINER)
    assert (trainer.gpus, trainer.replicas) == (gpus, replicas)


@pytest.mark.parametrize(("in_turns", "readers"), [(False, 8), (True, 1)])
def test_staging_memory_depends_on_concurrently_loading_ranks(in_turns: bool, readers: int) -> None:
    spec = make_spec(KNOWN_7B, resources=GPUS8, **{"training.loadInTurns": in_turns})
    [staging] = [each for each in size(spec, KNOWN_7B).terms if each.name == "staging"]
    assert staging.reason.startswith(f"maximum of loading the model ({readers} × 4 B")


@pytest.mark.parametrize("resources", [CPU, GPUS8], ids=["cpu", "gpu"])
def test_page_cache_term_is_ten_percent_of_pod_memory(resources: dict[str, Any]) -> None:
    memory = terms_of(size(make_spec(KNOWN_TINY, resources=resources), KNOWN_TINY), "memory")
    pages = memory.pop("pageCache")
    assert pages == int(0.1 * sum(memory.values()))


@pytest.mark.parametrize(
    ("resources", "facts"), [(CPU, KNOWN_7B), (GPUS8, None)], ids=["no GPU", "no model"]
)
def test_gpu_memory_terms_require_gpus_and_model_facts(
    resources: dict[str, Any], facts: Facts | None
) -> None:
    assert terms_of(size(make_spec(facts, resources=resources), facts), "gpu") == {}


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        (GPUS8, 8),
        (GPUS8 | {"nodes": 2}, 16),
        (GPUS8 | {"placement": "Disaggregated", "rolloutGpus": 4}, 12),
        (CPU, 0),
    ],
)
def test_gpu_total_covers_trainer_and_rollout_pods(resources: dict[str, Any], gpus: int) -> None:
    assert size(make_spec(resources=resources)).gpus == gpus


def test_specified_amounts_take_precedence_over_estimates() -> None:
    spec = make_spec(
        KNOWN_7B, resources=GPUS8 | {"memory": "500Gi", "shmSize": "64Gi", "cpu": "96"}
    )
    sizing = size(spec, KNOWN_7B)

    assert (sizing.memory, sizing.shm, sizing.cpu) == ("500Gi", "64Gi", "96")
    given = {term.resource: term for term in sizing.terms if term.name == "given"}
    assert given["memory"].bytes == 500 * GIB
    assert "instead of the estimate of" in given["shm"].reason
    assert estimate(sizing, "shm") < 64 * GIB


@pytest.mark.parametrize(
    ("cpu", "head", "side"), [("", "4", "1"), ("500m", "500m", "500m"), ("64", "4", "1")]
)
def test_pods_have_at_most_specified_cpus(cpu: str, head: str, side: str) -> None:
    sizing = size(make_job({"resources": {"cpu": cpu}}).spec, KNOWN_7B)
    assert sizing_for(sizing, PodRole.HEAD).cpu == head
    assert sizing_for(sizing, PodRole.PREFLIGHT).cpu == side


def test_model_memory_terms_are_zero_without_facts() -> None:
    sizing = size(make_spec(resources=GPUS8))
    unknown = [term for term in sizing.terms if "known after preflight" in term.reason]
    assert {term.name for term in unknown} == {"weightSync", "staging"}
    assert all(term.bytes == 0 for term in unknown)


@pytest.mark.row("C20")
def test_managed_retriever_memory_depends_on_corpus() -> None:
    kb = {"name": "kb", "managed": {"corpus": "/mnt/runs/c.jsonl"}}
    spec = make_spec(retrieval={"mode": "Prompt", "endpoints": [kb]})
    facts = Facts(corpus_bytes=GIB)
    assert terms_of(size(spec, facts), "retriever") == {"kb": 4 * GIB + 512 * MIB}
    reasons = [size(spec, each).terms[-1].reason for each in (facts, None)]
    assert reasons == [
        "0.5 GiB + 4 × corpus of 1.0 GiB",
        "0.5 GiB; the corpus is measured in preflight",
    ]


@pytest.mark.row("F2")
def test_processes_of_agent_are_part_of_head() -> None:
    agent = {"python": "app:answer", "processes": 8, "processMemory": "1Gi"}
    plain, sized = size(make_spec()), size(make_spec(rollout={"agent": agent}))

    assert terms_of(sized, "headMemory")["agent"] == 8 * GIB
    assert "agent" not in terms_of(plain, "headMemory")
    cpus = [parse_quantity(sizing_for(each, PodRole.HEAD).cpu) for each in (plain, sized)]
    assert cpus[1] == cpus[0] + 0.5
    default = size(make_spec(rollout={"agent": {"python": "app:answer", "processes": 8}}))
    assert terms_of(default, "headMemory")["agent"] == 2 * GIB


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    ("agent", "in_preflight"),
    [
        ({"python": "app:answer", "processMemory": "1Gi"}, {"agent": GIB, "parser": GIB}),
        ({"type": "Container", "identify": "Trace", "container": {"image": "app:1"}}, {}),
        ({"type": "Http", "identify": "Trace", "url": "http://app:8000/"}, {}),
    ],
)
def test_parser_of_replies_is_part_of_head_and_of_preflight_that_runs_the_application(
    agent: dict[str, Any], in_preflight: dict[str, int]
) -> None:
    plain, sized = size(make_spec()), size(make_spec(rollout={"agent": agent}))

    assert terms_of(sized, "headMemory")["parser"] == GIB
    assert "parser" not in terms_of(plain, "headMemory")
    before, after = (terms_of(each, "preflightMemory") for each in (plain, sized))
    assert {name: after[name] for name in after.keys() - before.keys()} == in_preflight


@pytest.mark.row("F2")
def test_container_of_agent_has_pods_of_specified_or_default_size() -> None:
    def pod(**values: Any) -> PodSizing:
        container = {"image": "app:1"} | values
        agent = {"type": "Container", "identify": "Trace", "container": container}
        sizing = size(make_spec(rollout={"agent": agent}))
        assert "agent" not in terms_of(sizing, "headMemory")
        return sizing_for(sizing, PodRole.AGENT)

    default = pod()
    assert (default.replicas, default.memory, default.gpus) == (1, "1Gi", 0)
    specified = pod(replicas=3, cpu="2", memory="3Gi")
    assert (specified.replicas, specified.cpu, specified.memory) == (3, "2", "3Gi")


@pytest.mark.row("D8")
def test_embedding_retriever_memory_covers_texts_vectors_links_and_model() -> None:
    dense = {
        "corpus": "/mnt/runs/c.jsonl",
        "index": "Hybrid",
        "embedding": {"path": "/mnt/runs/e5"},
        "hnswAbove": 999_999,
    }
    kb = {"name": "kb", "managed": dense}
    spec = make_spec(retrieval={"mode": "Prompt", "endpoints": [kb]})
    facts = Facts(
        corpus_bytes=GIB,
        corpus_passages=1_000_000,
        embedding_parameters=110_000_000,
        embedding_dimension=768,
    )
    sizing = size(spec, facts)

    expected = {
        "kb server": 3 * GIB // 2,
        "kb texts": 4 * GIB + 320 * 1_000_000,
        "kb model": 4 * 110_000_000,
        "kb vectors": 4 * 768 * 1_000_000,
        "kb links": 300 * 1_000_000,
    }
    assert terms_of(sizing, "retriever") == expected
    memory = parse_quantity(sizing_for(sizing, PodRole.RETRIEVER, "kb").memory)
    assert 0 <= memory - sum(expected.values()) < GIB

    def sized_with(**changes: Any) -> dict[str, int]:
        managed = {"managed": dense | changes}
        spec = make_spec(retrieval={"mode": "Prompt", "endpoints": [kb | managed]})
        return terms_of(size(spec, facts), "retriever")

    assert sized_with(index="Dense")["kb texts"] == 2 * GIB + 320 * 1_000_000
    assert "kb links" not in sized_with(hnswAbove=1_000_000)
    given = {"kb given": 4 * 768 * 1_000_000}  # in addition to the index, while it is built
    assert sized_with(vectors="/mnt/runs/v.npy") == expected | given


@pytest.mark.row("B5")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_jobs_are_sized_with_reason_per_term(path: Any) -> None:
    for facts in (None, KNOWN_7B, KNOWN_TINY):
        sizing = size(resolve(make_sample(path), facts).spec, facts)
        assert all(term.reason and term.bytes >= 0 for term in sizing.terms)
        assert parse_quantity(sizing.memory) > parse_quantity(sizing.shm) > 0
