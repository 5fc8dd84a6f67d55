import math
from dataclasses import replace

import pytest

from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.exchange.step_metrics import (
    REDUCTIONS,
    LossMetrics,
    Update,
    merge_ranks,
    reduce_updates,
    sampled_entropy,
)
from raggrpo_trainer.progress.metric_sinks import PrometheusText
from support.builders.trainer.reports import make_step


def make_update(num_tokens: int = 1, grad_norm: float = 1.0, **totals: float) -> Update:
    metrics = LossMetrics(**dict.fromkeys(REDUCTIONS, 0.0) | totals)
    return Update(metrics, num_tokens, num_positions=0, grad_norm=grad_norm)


def test_step_metrics_are_reduced_as_declared() -> None:
    updates = [
        make_update(3, loss=1.0, kl=0.6, mismatch_max=0.5),
        make_update(1, loss=4.0, kl=0.2, mismatch_max=0.1),
    ]
    metrics = reduce_updates(updates)

    assert metrics.keys() == REDUCTIONS.keys()
    assert metrics["kl"] == pytest.approx(0.2)
    assert (metrics["loss"], metrics["mismatch_max"]) == (2.5, 0.5)


def test_metric_mean_of_one_token_is_its_value() -> None:
    assert reduce_updates([make_update(1, kl=0.6)])["kl"] == 0.6


def test_step_metrics_are_zero_without_updates() -> None:
    assert set(reduce_updates([]).values()) == {0.0}


def test_entropy_includes_all_sampled_tokens() -> None:
    learns = Completion((5, 6, 7), (True, False, True), (-1.0, 0.0, -2.0))
    confident = Completion((5,), (True,), (-0.3,))  # all of its group are equal: no advantage
    groups = [Group((1,), (learns,), (1.0,)), Group((2,), (confident, confident), (0.0, 0.0))]
    assert sampled_entropy(groups) == pytest.approx((1.0 + 2.0 + 0.3 + 0.3) / 4)
    assert sampled_entropy([]) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_update_is_finite_if_loss_and_gradient_norm_are_finite(bad: float) -> None:
    assert make_update().is_finite
    assert not make_update(loss=bad).is_finite
    assert not make_update(grad_norm=bad).is_finite


def test_declared_metrics_are_reported_by_name() -> None:
    record = make_step(1)
    text = PrometheusText("demo").render(Progress(attempt=1, stage=Stage.TRAINING), record, {}, 0)
    assert record.scalars().keys() >= REDUCTIONS.keys()
    assert all(f"\nraggrpo_{name}{{" in text.decode() for name in REDUCTIONS)


def test_utilization_is_that_of_least_used_device() -> None:
    ranks = [make_step(1, device_utilization=share).trained for share in (0.9, None, 0.4)]
    assert merge_ranks(ranks).device_utilization == 0.4
    assert merge_ranks([ranks[1]]).device_utilization is None


def test_memory_and_durations_are_maxima_over_ranks() -> None:
    first = make_step(1, forward_seconds=1.0, backward_seconds=4.0, rank_memory_bytes=7).trained
    second = make_step(1, forward_seconds=3.0, backward_seconds=2.0, rank_memory_bytes=5).trained

    merged = merge_ranks([first, second])

    assert (merged.forward_seconds, merged.backward_seconds) == (3.0, 4.0)
    assert merged.rank_memory_bytes == 7
    assert merged.device_memory_bytes is merged.device_memory_reserved_bytes is None
    on_gpus = [replace(first, device_memory_reserved_bytes=size) for size in (2, 9)]
    assert merge_ranks(on_gpus).device_memory_reserved_bytes == 9
