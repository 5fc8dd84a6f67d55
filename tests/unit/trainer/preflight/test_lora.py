"""Check LoraTargets: families whose adapters would have no effect are rejected by name."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.trainer.preflight import CheckState
from raggrpo_trainer.policy.small_model import small_config
from raggrpo_trainer.preflight.lora import check_lora
from support.engines.model_families import config_of

LONG = partial(pytest.param, marks=pytest.mark.long)
QUANTIZED = {"quantization_config": {"quant_method": "fp8"}}


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("gpt2", {}, "GPT2LMHeadModel has no torch.nn.Linear in its decoder layers"),
        ("bamba", {}, "BambaMixer reads the weight of"),
        ("qwen2", QUANTIZED, "the weights are quantized"),
        LONG("falcon", {}, "FalconForCausalLM has no torch.nn.Linear in its decoder layers"),
        LONG("mamba2", {}, "Mamba2Mixer reads the weight of"),
        LONG("nemotron_h", {}, "reads the weight of"),
    ],
    ids=["gpt2", "bamba", "quantized", "falcon", "mamba2", "nemotron_h"],
)
def test_family_without_usable_layers_fails_preflight(
    tmp_path: Path, model_type: str, changes: dict[str, Any], words: str
) -> None:
    config = small_config(config_of(model_type))
    config.update(changes)
    config.save_pretrained(tmp_path)
    finding = check_lora(tmp_path, LoraSpec())
    assert finding.state is CheckState.FAILED
    assert finding.evidence.startswith("training.lora: ")
    assert words in finding.evidence
