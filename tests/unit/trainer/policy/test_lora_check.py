"""Adapters of small models of many families: each takes part, or the family is rejected."""

import pytest
from transformers import FalconConfig, GPT2Config, Qwen2Config, Qwen3MoeConfig

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_trainer.policy.lora import UnsupportedLora
from raggrpo_trainer.policy.lora_check import check_lora, experiment
from raggrpo_trainer.policy.small_model import small_config, small_model
from support.engines.model_families import config_of

DENSE = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "granite", "cohere", "olmo2"]
REJECTED = {
    "bamba": "reads the weight of",
    "mamba2": "reads the weight of",
    "nemotron_h": "reads the weight of",
    "gpt2": "GPT2LMHeadModel has no torch.nn.Linear in its decoder layers",
    "falcon": "FalconForCausalLM has no torch.nn.Linear in its decoder layers",
}


@pytest.mark.parametrize("model_type", DENSE)
def test_each_adapter_of_dense_family_is_trained_and_merges(model_type: str) -> None:
    config = config_of(model_type)
    assert experiment(small_model(config), small_model(config), LoraSpec()) == ""


@pytest.mark.parametrize(("model_type", "message"), REJECTED.items())
def test_family_whose_adapters_would_be_ignored_is_rejected(model_type: str, message: str) -> None:
    config = config_of(model_type)
    with pytest.raises(UnsupportedLora, match=message):
        experiment(small_model(config), small_model(config), LoraSpec())


def test_targets_without_directly_read_weights_are_accepted() -> None:
    config = config_of("bamba")
    lora = LoraSpec(targets=["q_proj", "v_proj", "down_proj"])
    assert experiment(small_model(config), small_model(config), lora) == ""


def test_result_counts_adapted_layers_and_parameters() -> None:
    config = small_config(Qwen2Config(num_hidden_layers=4, architectures=["Qwen2ForCausalLM"]))
    layers = config.num_hidden_layers
    result = check_lora(config, LoraSpec(targets=["down_proj"]))
    assert (result.problem, result.layers) == ("", layers)
    assert result.adapted == layers * config.hidden_size * config.intermediate_size
    assert result.total == sum(each.numel() for each in small_model(config).parameters())


def test_layer_that_is_not_called_is_reported() -> None:
    config = config_of("qwen2")
    adapted, plain = small_model(config), small_model(config)
    layer = adapted.get_submodule("model.layers.0.self_attn")
    layer.o_proj.forward = lambda x: x @ layer.o_proj.weight.T
    problem = experiment(adapted, plain, LoraSpec())
    assert problem.startswith("the adapter of model.layers.0.self_attn.o_proj receives no gradient")


def test_experts_are_not_adapted() -> None:
    config = small_config(Qwen3MoeConfig(architectures=["Qwen3MoeForCausalLM"]))
    result = check_lora(config, LoraSpec())
    assert result.problem == ""
    assert 0 < result.adapted < result.total / 2


def test_rejected_family_has_problem() -> None:
    for config in (GPT2Config(n_layer=2), FalconConfig(num_hidden_layers=2)):
        assert "no torch.nn.Linear" in check_lora(config, LoraSpec()).problem
