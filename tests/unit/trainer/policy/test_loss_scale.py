"""FP16 on real FSDP2 ranks: overflows are skipped and counted, and the scale is saved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from raggrpo_api.spec.training import Precision
from raggrpo_trainer.policy.loss_scale import LossScale
from raggrpo_trainer.ranks.rank_actor import load_checkpoint
from support.builders.trainer import policies as policy_support
from support.builders.trainer.policies import (
    make_policy,
    one_rank,
    rank_processes,
    uneven_groups,
)

INITIAL_SCALE = 2.0**16


@pytest.fixture(scope="module")
def rank_results(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("checkpoint")
    with rank_processes(2) as ranks:
        yield ranks.run(policy_support.fp16_overflow_run, str(model), str(folder))


@pytest.mark.row("D13")
def test_fp16_overflow_skips_update_and_halves_loss_scale(rank_results: list[Any]) -> None:
    for result in rank_results:
        first, skipped, third, _ = result["metrics"]
        before, after, *_ = result["parameters"]
        assert (first.num_skipped_updates, first.loss_scale) == (0, INITIAL_SCALE)
        assert (skipped.num_skipped_updates, skipped.loss_scale) == (1, INITIAL_SCALE / 2)
        assert not skipped.non_finite
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert (third.num_skipped_updates, third.loss_scale) == (0, INITIAL_SCALE / 2)
        assert third.grad_norm > 0


@pytest.mark.row("D13")
def test_resumed_fp16_run_restores_loss_scale_exactly(rank_results: list[Any]) -> None:
    for result in rank_results:
        *_, third, again = result["metrics"]
        *_, went_on, resumed_on = result["parameters"]
        assert again.loss_scale == third.loss_scale
        assert (again.loss, again.grad_norm) == (third.loss, third.grad_norm)
        assert all(torch.equal(went_on[name], resumed_on[name]) for name in went_on)


@pytest.mark.row("D13")
def test_fp16_overflows_at_same_advantage_with_any_number_of_ranks(model: Path) -> None:
    advantages = [2.0**power for power in range(-8, 1)]
    with one_rank():
        alone = policy_support.fp16_skipped_updates(0, 1, str(model), advantages)
    with rank_processes(2) as ranks:
        together = ranks.run(policy_support.fp16_skipped_updates, str(model), advantages)
    assert set(alone) == {0, 1}
    assert together == [alone, alone]


def test_infinite_loss_with_finite_gradients_halves_loss_scale() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    scale = LossScale(Precision.FP16, torch.device("cpu"))
    values = []
    for loss in (1.0, float("inf"), float("inf"), 1.0):
        scale.scale(parameter.sum()).backward()
        scale.unscale(optimizer)
        scale.update(is_overflow=scale.is_overflow(loss, grad_norm=1.0))
        values.append(scale.value)
    assert values == [INITIAL_SCALE, INITIAL_SCALE / 2, INITIAL_SCALE / 4, INITIAL_SCALE / 4]
    assert scale.state_dict()["_growth_tracker"] == 1


def test_overflowing_gradients_halve_loss_scale_once() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    scale = LossScale(Precision.FP16, torch.device("cpu"))
    scale.scale(parameter.sum() * float("inf")).backward()
    scale.unscale(optimizer)
    scale.update(is_overflow=True)
    assert scale.value == INITIAL_SCALE / 2


def test_exported_weights_have_forward_dtype(rank_results: list[Any]) -> None:
    assert {tensor.dtype for tensor in rank_results[0]["parameters"][0].values()} == {torch.float16}


def test_fp16_step_matches_fp32_within_precision(model: Path, rank_results: list[Any]) -> None:
    with one_rank():
        exact = make_policy(model).step(uneven_groups(), step=1)
    first = rank_results[0]["metrics"][0]
    assert first.loss == pytest.approx(exact.loss, abs=0.005)
    assert first.grad_norm == pytest.approx(exact.grad_norm, rel=0.01)


def test_loss_scale_is_initial_after_resume_from_other_precision(
    model: Path, tmp_path: Path
) -> None:
    with one_rank():
        save(make_policy(model).state_dict(), checkpoint_id=str(tmp_path / "fp32"))
        policy = make_policy(model, precision=Precision.FP16)
        load_checkpoint(policy, str(tmp_path / "fp32"))
        assert policy.step(uneven_groups(), step=1).loss_scale == INITIAL_SCALE

        save(policy.state_dict(), checkpoint_id=str(tmp_path / "fp16"))
        load_checkpoint(make_policy(model), str(tmp_path / "fp16"))


def test_non_finite_gradient_at_minimum_scale_is_not_overflow() -> None:
    scale = LossScale(Precision.FP16, torch.device("cpu"))
    assert scale.is_overflow(1.0, float("inf"))
    scale.load_state_dict(scale.state_dict() | {"scale": 1.0})
    assert not scale.is_overflow(1.0, float("inf"))
    scale.load_state_dict(scale.state_dict() | {"scale": 2.0})
    assert scale.is_overflow(1.0, float("inf"))
    assert not LossScale(Precision.BF16, torch.device("cpu")).is_overflow(1.0, float("nan"))
