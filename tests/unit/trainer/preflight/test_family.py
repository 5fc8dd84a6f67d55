import json
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.memory.model_families import model_family
from raggrpo_api.spec.training import RowLayout
from raggrpo_api.trainer.preflight import CheckState
from raggrpo_trainer.preflight.family import (
    best_layout,
    check_family,
    engine_architectures,
    engine_problems,
    layout_from_experiment,
)
from support.builders.trainer.preflight import make_fit_config

SHARED, PADDED = RowLayout.SHARED_PREFIX, RowLayout.PADDED
EXACT = {"is_exact": True, "nats": 1e-6, "gradient_error": 1e-6, "problem": ""}
OFF = {"is_exact": False, "nats": 3.8, "gradient_error": 1.7, "problem": ""}


def make_model_config(architecture: str, **config: Any) -> dict[str, Any]:
    kind = architecture.removesuffix("ForCausalLM").lower()
    return {"architectures": [architecture], "model_type": kind, **config}


def write_config(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("shared", "padded", "layout"),
    [(EXACT, EXACT, SHARED), (OFF, EXACT, PADDED), (OFF, OFF, None)],
)
def test_best_exact_row_layout_is_selected(
    shared: dict[str, Any], padded: dict[str, Any], layout: RowLayout | None
) -> None:
    family = model_family({"architectures": ["X"], "layer_types": ["linear_attention"]})
    result = {"problem": "", "layouts": {SHARED: shared, PADDED: padded}}
    assert layout_from_experiment(family, result).row_layout is layout


@pytest.mark.row("D2")
@pytest.mark.parametrize(
    ("window", "longest", "layout"),
    [(4096, 4096, SHARED), (4096, 4097, PADDED), (None, 100_000, SHARED)],
)
def test_sliding_window_covering_row_is_treated_as_full_attention(
    window: int | None, longest: int, layout: RowLayout, tmp_path: Path
) -> None:
    family = model_family(make_model_config("MistralForCausalLM", sliding_window=window))
    assert best_layout(family, tmp_path, longest).row_layout is layout


def test_architecture_with_the_type_of_another_is_not_measured() -> None:
    assert model_family(make_model_config("Qwen3ForCausalLM")).is_measured
    assert not model_family(make_model_config("Qwen3ForCausalLM", model_type="gpt_neo")).is_measured


def test_disabled_sliding_window_of_qwen_is_ignored() -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8, "max_window_layers": 2}
    assert model_family(config | {"use_sliding_window": False}).window is None
    assert model_family(config | {"use_sliding_window": True}).window == 8


@pytest.mark.parametrize("kind", ["longrope", "su", "dynamic"])
def test_length_dependent_rope_is_rejected_beyond_original_length(
    kind: str, tmp_path: Path
) -> None:
    rope = {"rope_type": kind, "original_max_position_embeddings": 64}
    family = model_family(make_model_config("LlamaForCausalLM", rope_parameters=rope))
    assert best_layout(family, tmp_path, 64).row_layout is SHARED
    rejected = best_layout(family, tmp_path, 65)
    assert rejected.row_layout is None
    assert "decrease data.maxPromptLength" in rejected.reason


def test_engine_architectures_exclude_unsupported_models() -> None:
    known = engine_architectures()
    assert {"Qwen3ForCausalLM", "OlmoeForCausalLM", "SmolLM3ForCausalLM"} <= known
    assert not {"RwkvForCausalLM", "BertModel"} & known


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ({"rope_scaling": "mrope"}, "cannot be trained: transformers in this image"),
        ({"model_type": ""}, "cannot be trained: transformers in this image"),
        ({"hidden_act": "gelu"}, "hidden_act gelu: vLLM"),
    ],
)
def test_unsupported_variant_of_known_family_is_rejected(
    config: dict[str, Any], reported: str, tmp_path: Path
) -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    folder = write_config(
        tmp_path, **make_model_config("LlamaForCausalLM", **shape, vocab_size=99, **config)
    )
    finding = check_family(make_fit_config(tmp_path, {"model.path": str(folder)})).finding
    assert finding.state is CheckState.FAILED
    assert reported in finding.evidence


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    ("shape", "reported"),
    [
        ({"hidden_size": 64, "num_attention_heads": 4}, "head size 16"),
        ({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 48}, "head size 48"),
        ({"hidden_size": 256, "num_attention_heads": 4}, ""),
        ({"hidden_size": 64, "num_attention_heads": 4, "kv_lora_rank": 8}, ""),
        ({"hidden_size": 64}, ""),
        ({"layer_types": ["conv", "full_attention"]}, "conv layers"),
    ],
)
def test_model_without_cpu_engine_support_is_rejected(shape: dict[str, Any], reported: str) -> None:
    family = model_family({"architectures": ["Qwen3ForCausalLM"], **shape})
    assert list(engine_problems(family, on_cpu=False)) == []
    [problem] = [*engine_problems(family, on_cpu=True)] or [""]
    assert reported in problem
    assert bool(reported) == ("resources.device: GPU" in problem)
    assert ("head size" in reported) == ("32, 64, 80" in problem)


@pytest.mark.row("D1")
def test_family_with_padded_rows_is_measured_and_reported(tmp_path: Path) -> None:
    """Run the real experiment in a separate process."""
    config = make_fit_config(tmp_path, {"resources.device": "GPU"})
    write_config(
        tmp_path / "model",
        architectures=["Qwen3NextForCausalLM"],
        model_type="qwen3_next",
        num_experts=512,
        layer_types=["linear_attention", "linear_attention", "full_attention"],
        num_hidden_layers=3,
    )
    result = check_family(config)
    assert (result.row_layout, result.finding.state) == (PADDED, CheckState.PASSED)
    assert "Padded rows (its linear_attention layers have state: " in result.finding.evidence
    assert "512 experts, trained without the router's auxiliary loss" in result.finding.evidence


@pytest.mark.parametrize("named", [[], [{"name": "x"}], "Qwen3ForCausalLM", None])
def test_model_without_architecture_is_rejected(named: object, tmp_path: Path) -> None:
    config = make_fit_config(tmp_path)
    write_config(tmp_path / "model", architectures=named, model_type="qwen3")
    finding = check_family(config).finding
    assert finding.state is CheckState.FAILED
    assert "has no architectures" in finding.evidence


@pytest.mark.row("D1")
def test_unknown_family_is_rejected_with_reasons(tmp_path: Path) -> None:
    config = make_fit_config(tmp_path)
    write_config(tmp_path / "model", architectures=["NewForCausalLM"], model_type="new_model")
    finding = check_family(config).finding
    assert finding.state is CheckState.FAILED
    assert "NewForCausalLM cannot be trained: transformers in this image" in finding.evidence
    assert "NewForCausalLM is not supported by the rollout engine, vLLM" in finding.evidence
    assert "docs/reference/models.md" in finding.evidence
