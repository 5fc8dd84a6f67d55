"""Adapters of small models of many families: each takes part, or the family is rejected."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, FalconConfig, GPT2Config, Qwen2Config, Qwen3MoeConfig

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_trainer.policy.lora import UnsupportedLora, lora_targets
from raggrpo_trainer.policy.lora_check import adapter_problem, check_lora
from raggrpo_trainer.policy.small_model import small_config, small_model
from support.engines.model_families import config_of

DENSE = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "cohere"]
REJECTED = {
    "bamba": "reads the weight of",
    "mamba2": "reads the weight of",
    "nemotron_h": "reads the weight of",
    "gpt2": "GPT2LMHeadModel has no torch.nn.Linear in its decoder layers",
    "falcon": "FalconForCausalLM has no torch.nn.Linear in its decoder layers",
}


NEEDS_TARGETS = {
    "bloom", "deepseek_v32", "deepseek_v4", "falcon", "falcon_h1", "falcon_mamba", "gemma3n_text",
    "glm_moe_dsa", "gpt-sw3", "gpt2", "granitemoehybrid", "hunyuan_v1_moe", "hy_v4", "jamba",
    "mamba", "mamba2", "nemotron_h", "zamba2",
}  # fmt: skip
"""Families of the model table for which AllLinear is rejected."""
MODELS = Path(__file__).parents[4] / "docs" / "reference" / "models.md"
TRAINED = re.findall(
    r"^\| `([\w-]+)` \| `\w+` \| (?:shared-prefix|padded) \|", MODELS.read_text(), re.MULTILINE
)


@pytest.mark.row("F1")
@pytest.mark.long
@pytest.mark.parametrize("model_type", TRAINED)
def test_each_family_of_the_model_table_trains_adapters_or_is_rejected(model_type: str) -> None:
    config = config_of(model_type)
    try:
        problem = adapter_problem(small_model(config), small_model(config), LoraSpec())
    except UnsupportedLora as error:
        problem = str(error)
    assert bool(problem) is (model_type in NEEDS_TARGETS), problem


@pytest.mark.parametrize("model_type", DENSE)
def test_each_adapter_of_dense_family_is_trained_and_merges(model_type: str) -> None:
    config = config_of(model_type)
    assert adapter_problem(small_model(config), small_model(config), LoraSpec()) == ""


def test_model_of_too_many_tensors_is_rejected() -> None:
    config = Qwen2Config(num_hidden_layers=2_000, name_or_path="model")
    problem = check_lora(config, LoraSpec()).problem
    assert "model/config.json specifies a model of more than 20,000 tensors: copy the" in problem


@pytest.mark.parametrize(("model_type", "message"), REJECTED.items())
def test_family_whose_adapters_would_be_ignored_is_rejected(model_type: str, message: str) -> None:
    config = config_of(model_type)
    with pytest.raises(UnsupportedLora, match=message):
        adapter_problem(small_model(config), small_model(config), LoraSpec())


def test_targets_without_directly_read_weights_are_accepted() -> None:
    config = config_of("bamba")
    lora = LoraSpec(targets=["q_proj", "v_proj", "down_proj"])
    assert adapter_problem(small_model(config), small_model(config), lora) == ""


def test_result_counts_adapted_layers_and_parameters() -> None:
    config = small_config(Qwen2Config(num_hidden_layers=4, architectures=["Qwen2ForCausalLM"]))
    layers = config.num_hidden_layers
    result = check_lora(config, LoraSpec(targets=["down_proj"]))
    assert (result.problem, result.layers) == ("", layers)
    assert result.adapted_parameters == layers * config.hidden_size * config.intermediate_size
    assert result.parameters == sum(each.numel() for each in small_model(config).parameters())


def test_adapters_of_rank_32_are_five_percent_of_the_model_at_most() -> None:
    """The checkpoint of a 7B model has 1.0 GB instead of 91 GB: adapters with two moments."""
    config = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    lora = LoraSpec(rank=32)
    layers = lora_targets(model, lora).values()
    size = sum(lora.rank * (each.in_features + each.out_features) for each in layers)
    assert size <= 0.05 * sum(each.numel() for each in model.parameters())
    assert 12 * size == pytest.approx(1.0e9, rel=0.05)


def test_layer_that_is_not_called_is_reported() -> None:
    config = config_of("qwen2")
    adapted, plain = small_model(config), small_model(config)
    layer = adapted.get_submodule("model.layers.0.self_attn")
    layer.o_proj.forward = lambda x: x @ layer.o_proj.weight.T
    problem = adapter_problem(adapted, plain, LoraSpec())
    assert problem.startswith("the adapter of model.layers.0.self_attn.o_proj receives no gradient")


def test_experts_are_not_adapted() -> None:
    config = small_config(Qwen3MoeConfig(architectures=["Qwen3MoeForCausalLM"]))
    result = check_lora(config, LoraSpec())
    assert result.problem == ""
    assert 0 < result.adapted_parameters < result.parameters / 2


def test_rejected_family_has_problem() -> None:
    for config in (GPT2Config(n_layer=2), FalconConfig(num_hidden_layers=2)):
        assert "no torch.nn.Linear" in check_lora(config, LoraSpec()).problem
