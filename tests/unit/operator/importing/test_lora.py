"""verl's adapters, for FSDP and Megatron, become training.lora or are reported."""

from typing import Any

import pytest

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_operator.core.importing.translation import Imported
from raggrpo_operator.core.importing.verl import import_verl
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import errors
from support.builders.operator.jobs import RagGrpoJob

MODEL = "actor_rollout_ref.model."
ALL = ["AllLinear"]


def imported_lora(**settings: Any) -> tuple[LoraSpec | None, Imported]:
    given = {f"{MODEL}{name.replace('__', '.')}": value for name, value in settings.items()}
    imported = import_verl(
        {
            "data.train_files": "/data/train.parquet",
            f"{MODEL}path": "/models/m",
            "actor_rollout_ref.rollout.n": 4,
            "trainer.total_training_steps": 10,
            **given,
        }
    )
    job = parse_job(imported.job)
    assert isinstance(job, RagGrpoJob), job
    assert errors(violations(job, resolve(job))) == ()
    return job.spec.training.lora, imported


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lora_rank": 8, "lora_alpha": 32}, LoraSpec(rank=8, alpha=32)),
        ({"lora_rank": 8}, LoraSpec(rank=8, alpha=16)),
        ({"lora_rank": "64", "lora_alpha": "128"}, LoraSpec(rank=64, alpha=128)),
        ({"lora_rank": 8, "target_modules": "all-linear"}, LoraSpec(rank=8, alpha=16, targets=ALL)),
        (
            {"lora_rank": 8, "target_modules": ["q_proj", "v_proj"]},
            LoraSpec(rank=8, alpha=16, targets=["q_proj", "v_proj"]),
        ),
        ({"lora__rank": 16, "lora__alpha": 8}, LoraSpec(rank=16, alpha=8)),
        ({"lora__rank": 16}, LoraSpec(rank=16, alpha=32)),
        (
            {"lora__rank": 16, "lora__target_modules": ["linear_qkv", "linear_fc2"]},
            LoraSpec(rank=16, alpha=32, targets=["q_proj", "k_proj", "v_proj", "down_proj"]),
        ),
        (
            {
                "lora__rank": 16,
                "lora__target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
            },
            LoraSpec(rank=16, alpha=32, targets=ALL),
        ),
        ({"lora_rank": 0, "lora_alpha": 16}, None),
        ({"lora__rank": 0}, None),
        ({}, None),
    ],
)
def test_adapters_of_verl_are_imported(settings: dict[str, Any], expected: LoraSpec | None) -> None:
    lora, imported = imported_lora(**settings)
    assert lora == expected
    reported = "\n".join([*imported.mapped, *imported.unmapped, *imported.wrong])
    assert all(f"{MODEL}{name.replace('__', '.')}" in reported for name in settings)


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"lora_rank": 1024}, "lora_rank: 1024 is above 512: changed to 512"),
        ({"lora__rank": 8, "lora__dropout": 0.1}, "0.1 is not supported: adapters have no dropout"),
        (
            {"lora_rank": 8, "exclude_modules": ["mlp"]},
            "exclude_modules: ['mlp'] is not supported: name the layers",
        ),
        ({"lora_rank": 8, "lora_adapter_path": "/a"}, "lora_adapter_path: /a is not supported"),
        ({"lora_rank": 8, "target_parameters": ["w"]}, "only linear layers can have adapters"),
        (
            {"lora_rank": 8, "target_modules": ["q_proj", "lm_head"]},
            "target_modules: lm_head cannot have an adapter",
        ),
        (
            {"lora_rank": 8, "target_modules": ".*(q|v)_proj"},
            "target_modules: .*(q|v)_proj is not the name of a layer",
        ),
        ({"lora_rank": 8, "target_modules": 4}, ""),
    ],
)
def test_unsupported_adapter_settings_are_reported(settings: dict[str, Any], reported: str) -> None:
    _, imported = imported_lora(**settings)
    assert any(reported in line for line in imported.wrong)


def test_dropout_of_zero_is_not_an_error() -> None:
    _, imported = imported_lora(lora__rank=8, lora__dropout=0.0)
    assert not any("dropout" in line for line in imported.wrong)
