"""‖Δw‖/‖w‖ derived from the state of AdamW equals the measured change of the weights."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.spec.training import Precision
from support.builders.trainer.policies import (
    make_group,
    make_policy,
    parameters,
    uneven_groups,
)

pytestmark = pytest.mark.usefixtures("process_group")


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(each.double().square().sum().item() for each in tensors.values()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight_decay": 0.1},
        {"mini_batch_prompts": 2, "weight_decay": 0.01},
        {"lora": LoraSpec(rank=4, alpha=1.5), "weight_decay": 0.1},
        {"lora": LoraSpec(rank=4), "mini_batch_prompts": 2},
    ],
    ids=["plain", "decayed", "three updates", "adapters", "adapters, three updates"],
)
def test_weight_update_ratio_is_relative_change_of_last_update(
    model: Path, changes: dict[str, Any]
) -> None:
    policy = make_policy(model, weight_update_every_steps=1, **changes)
    policy.step(uneven_groups(), step=1)
    before = parameters(policy)
    actual = policy.step(uneven_groups()[:2], step=2).weight_update_ratio  # one update
    after = parameters(policy)

    moved = {name: after[name].double() - before[name].double() for name in before}
    assert actual == pytest.approx(norm(moved) / norm(after), rel=1e-4)
    assert actual > 1e-3


def test_weight_update_ratio_does_not_change_parameters(model: Path) -> None:
    measured, plain = make_policy(model, weight_update_every_steps=1), make_policy(model)
    for step in (1, 2):
        measured.step(uneven_groups(), step=step)
        assert plain.step(uneven_groups(), step=step).weight_update_ratio is None
    nothing = [make_group(advantages=(0.0, 0.0, 0.0))]
    assert measured.step(nothing, step=3).weight_update_ratio is None
    broken = [make_group(advantages=(math.nan, 0.5, 0.5))]
    assert measured.step(broken, step=4).weight_update_ratio is None

    actual, expected = parameters(measured), parameters(plain)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_weight_update_ratio_is_zero_for_zero_learning_rate(model: Path) -> None:
    schedule = {"learning_rate_schedule": "Linear", "decay_steps": 2}
    policy = make_policy(model, weight_update_every_steps=1, precision=Precision.BF16, **schedule)
    first = policy.step(uneven_groups(), step=1).weight_update_ratio
    assert first is not None
    assert first > 1e-3
    assert policy.step(uneven_groups(), step=9).weight_update_ratio == 0.0
