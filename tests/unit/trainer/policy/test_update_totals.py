from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.exchange.step_metrics import REDUCTIONS, LossMetrics
from raggrpo_trainer.policy.packing import Item, build_items, build_micro_batch
from raggrpo_trainer.policy.update_totals import UpdateTotals
from support.builders.trainer.policies import make_group

pytestmark = pytest.mark.usefixtures("process_group")


def measured(values: Sequence[float]) -> LossMetrics[Tensor]:
    return LossMetrics(**dict.fromkeys(REDUCTIONS, torch.tensor(values, requires_grad=True)))


def work() -> list[Item]:
    return build_items([make_group((4, 2), prompt=3)], [1.0, 1.0], skip_zero_advantage=False)


def test_update_totals_are_double_precision_sums_and_maxima() -> None:
    totals = UpdateTotals(torch.device("cpu"))
    batch = build_micro_batch(work(), RowLayout.SHARED_PREFIX)
    for values in ([2.0**24] * 3, [1.0, 0.0, 0.0]):  # in single precision the 1 would be lost
        totals.add(batch, measured(values))
    update = totals.all_reduce(grad_norm=0.5)

    assert update.totals.kl == update.totals.loss == 3 * 2.0**24 + 1.0
    assert update.totals.mismatch_max == 2.0**24
    assert (update.num_tokens, update.num_positions, update.grad_norm) == (12, 14, 0.5)


def test_empty_micro_batch_adds_one_position_only() -> None:
    totals = UpdateTotals(torch.device("cpu"))
    totals.add(build_micro_batch([], RowLayout.SHARED_PREFIX), measured([]))
    update = totals.all_reduce(grad_norm=0.0)
    assert {getattr(update.totals, name) for name in REDUCTIONS} == {0.0}
    assert (update.num_tokens, update.num_positions) == (0, 1)
