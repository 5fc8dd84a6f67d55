import pytest

from raggrpo_api.spec.lora import LoraSpec


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        (LoraSpec(), 2.0),
        (LoraSpec(rank=8), 2.0),
        (LoraSpec(rank=8, alpha=8), 1.0),
        (LoraSpec(rank=16, alpha=4), 0.25),
    ],
)
def test_scale_is_alpha_per_rank(lora: LoraSpec, expected: float) -> None:
    assert lora.scale == expected


@pytest.mark.parametrize(
    ("targets", "module", "expected"),
    [
        (["AllLinear"], "model.layers.0.self_attn.q_proj", True),
        (["AllLinear"], "lm_head", False),
        (["AllLinear"], "gpt_neox.embed_out", False),
        (["q_proj"], "model.layers.0.self_attn.q_proj", True),
        (["q_proj"], "q_proj", True),
        (["self_attn.q_proj", "up_proj"], "model.layers.11.mlp.up_proj", True),
        (["self_attn.q_proj"], "model.layers.0.cross_attn.q_proj", False),
        (["proj"], "model.layers.0.self_attn.q_proj", False),
        (["layers.1.mlp.up_proj"], "model.layers.11.mlp.up_proj", False),
    ],
)
def test_targets_match_last_components_of_a_path(
    targets: list[str], module: str, expected: bool
) -> None:
    assert LoraSpec(targets=targets).is_target(module) is expected
