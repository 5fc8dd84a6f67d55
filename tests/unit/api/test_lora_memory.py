"""Memory and sizes of jobs with adapters, for the shapes of two published models."""

from typing import Any

import pytest

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.parameters import (
    adapter_parameters,
    checkpoint_bytes,
    flops_per_position,
    trained_parameters,
)
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_trainer.preflight.weights import adapted_layers, count_parameters, expected_tensors
from support.builders.operator.jobs import make_job

GB = 10**9
QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18_944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "vocab_size": 152_064,
}  # fmt: skip
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28_672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 128_256,
}  # fmt: skip


def facts_of(config: dict[str, Any], lora: LoraSpec) -> Facts:
    shapes = expected_tensors(config)
    adapted = adapted_layers(shapes, lora)
    return Facts(
        parameters=count_parameters(shapes),
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        vocabulary=config["vocab_size"],
        adapted_layers=len(adapted),
        adapter_parameters_per_rank=sum(map(sum, adapted)),
    )


def make_spec(**changes: Any) -> JobSpec:
    given = {"training.lora": {}, "resources": {"gpusPerNode": 1}}
    return resolve(make_job(given | changes)).spec


def table_row(config: dict[str, Any], rank: int, precision: str) -> dict[str, float]:
    spec = make_spec(**{"training.lora": {"rank": rank}, "training.precision": precision})
    facts = facts_of(config, LoraSpec())
    return {
        "state": gpu_memory.training_state(spec, facts) / GB,
        "adapters in 16 bits": 2 * adapter_parameters(spec.training, facts) / GB,
        "checkpoint": checkpoint_bytes(spec.training, facts) / GB,
    }


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    ("config", "rank", "precision", "expected"),
    [
        (QWEN_7B, 32, "FP32", {"state": 32, "adapters in 16 bits": 0.161, "checkpoint": 1.0}),
        (QWEN_7B, 32, "BF16", {"state": 17, "adapters in 16 bits": 0.161, "checkpoint": 1.0}),
        (QWEN_7B, 16, "FP16", {"state": 16, "adapters in 16 bits": 0.081, "checkpoint": 0.5}),
        (LLAMA_70B, 32, "FP32", {"state": 289, "adapters in 16 bits": 0.828, "checkpoint": 5}),
        (LLAMA_70B, 32, "BF16", {"state": 148, "adapters in 16 bits": 0.828, "checkpoint": 5}),
        (LLAMA_70B, 16, "BF16", {"state": 144, "adapters in 16 bits": 0.414, "checkpoint": 2.5}),
    ],
)
def test_memory_of_published_models_matches_worked_table(
    config: dict[str, Any], rank: int, precision: str, expected: dict[str, float]
) -> None:
    assert table_row(config, rank, precision) == pytest.approx(expected, rel=0.05)


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    ("config", "lora", "precision", "state"),
    [
        (QWEN_7B, None, "BF16", 122),
        (QWEN_7B, {"rank": 32}, "FP32", 32),
        (QWEN_7B, {"rank": 32}, "BF16", 17),
        (LLAMA_70B, None, "BF16", 1130),
        (LLAMA_70B, {"rank": 32}, "FP32", 289),
        (LLAMA_70B, {"rank": 32}, "BF16", 148),
    ],
)
def test_terms_in_plan_are_memory_of_worked_table(
    config: dict[str, Any], lora: dict[str, Any] | None, precision: str, state: float
) -> None:
    spec = make_spec(**{"training.lora": lora, "training.precision": precision})
    terms = size(spec, facts_of(config, LoraSpec())).terms
    names = ("frozenWeights", "weights", "gradients", "optimizer")
    held = sum(each.bytes for each in terms if each.resource == "gpu" and each.name in names)
    assert held / GB == pytest.approx(state, rel=0.15)


@pytest.mark.row("F1")
def test_checkpoint_of_rank_32_is_at_most_five_percent() -> None:
    for config in (QWEN_7B, LLAMA_70B):
        facts = facts_of(config, LoraSpec())
        full, adapters = (
            checkpoint_bytes(make_spec(**{"training.lora": lora}).training, facts)
            for lora in (None, {"rank": 32})
        )
        assert adapters <= 0.05 * full


def test_adapters_need_no_reference_model() -> None:
    facts = facts_of(QWEN_7B, LoraSpec())
    with_kl = make_spec(**{"algorithm.klCoefficient": 0.1})

    assert "reference" not in gpu_memory.training_state_components(with_kl, facts)
    assert gpu_memory.training_state(with_kl, facts) == gpu_memory.training_state(
        make_spec(), facts
    )


@pytest.mark.parametrize(
    ("targets", "layers", "per_layer"),
    [
        (["AllLinear"], 196, 90_112),
        (["q_proj", "v_proj"], 56, 2 * 3584 + 3584 + 512),
        (["self_attn.o_proj"], 28, 2 * 3584),
        (["mlp.down_proj", "gate_proj", "up_proj"], 84, 3 * (3584 + 18_944)),
        (["none"], 0, 0),
    ],
)
def test_adapters_are_counted_from_shapes_of_targets(
    targets: list[str], layers: int, per_layer: int
) -> None:
    facts = facts_of(QWEN_7B, LoraSpec(targets=targets))

    assert facts.adapted_layers == layers
    assert facts.adapter_parameters_per_rank == 28 * per_layer


def test_embeddings_head_norms_and_experts_have_no_adapters() -> None:
    shapes = {
        "model.embed_tokens.weight": [100, 8],
        "lm_head.weight": [100, 8],
        "model.norm.weight": [8],
        "model.layers.0.input_layernorm.weight": [8],
        "model.layers.0.self_attn.q_proj.bias": [8],
        "model.layers.0.mlp.experts.3.up_proj.weight": [16, 8],
        "model.layers.0.mlp.experts.gate_up_proj": [4, 32, 8],
        "model.layers.0.mlp.shared_expert.up_proj.weight": [16, 8],
        "model.layers.0.self_attn.q_proj.weight": [8, 8],
    }
    assert adapted_layers(shapes, LoraSpec()) == [[16, 8], [8, 8]]


def test_full_training_updates_all_parameters() -> None:
    facts = facts_of(QWEN_7B, LoraSpec())
    full, adapters = make_spec(**{"training.lora": None}).training, make_spec().training

    assert trained_parameters(full, facts) == facts.parameters
    assert adapter_parameters(full, facts) == 0
    assert trained_parameters(adapters, facts) == 32 * 28 * 90_112


def test_frozen_parameters_need_four_flops_and_trained_ones_six() -> None:
    assert flops_per_position(1000, 1000) == 6000
    assert flops_per_position(1000, 0) == 4000
    assert flops_per_position(1000, 100) == 4200
