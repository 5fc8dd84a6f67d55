import pytest
import torch

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.policy.packing import (
    Item,
    MicroBatch,
    Span,
    balance_over_ranks,
    build_items,
    build_micro_batch,
    plan_micro_batches,
)
from support.builders.trainer.policies import make_group, uneven_groups


def items_of(groups: list[Group], *, skip_zero_advantage: bool = False) -> list[Item]:
    number = sum(len(group.completions) for group in groups)
    return build_items(groups, range(number), skip_zero_advantage=skip_zero_advantage)


def small_group() -> Group:
    """Return prompt 1 2 3 with completions 7 and 4 5 6, of which 5 was retrieved."""
    return Group(
        (1, 2, 3),
        (
            Completion((7,), (True,), (-0.7,)),
            Completion((4, 5, 6), (True, False, True), (-0.4, 0.0, -0.6)),
        ),
        (-0.5, 0.5),
    )


@pytest.mark.row("A19")
def test_shared_prefix_row_contains_prompt_once_without_padding() -> None:
    batch = build_micro_batch(items_of([small_group()]), RowLayout.SHARED_PREFIX)

    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4]]
    # 7 and 4 are predicted by the prompt's last token, 6 by 5
    assert batch.source.tolist() == [2, 2, 4]
    assert batch.targets.tolist() == [7, 4, 6]
    assert batch.rollout_logprobs.tolist() == pytest.approx([-0.7, -0.4, -0.6])
    assert batch.advantages.tolist() == [-0.5, 0.5, 0.5]
    assert batch.weights.tolist() == [0.0, 1.0, 1.0]
    assert batch.tokens.tolist() == [0, 1, 2]


def test_padded_rows_repeat_prompt_and_predict_same_tokens() -> None:
    batch = build_micro_batch(
        plan_micro_batches(items_of([small_group()]), RowLayout.PADDED, 100)[0], RowLayout.PADDED
    )

    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert batch.source.tolist() == [2, 4, 5 + 2]
    assert batch.targets.tolist() == [4, 6, 7]
    assert batch.spans is None


def test_position_ids_restart_for_each_prompt_in_row() -> None:
    batch = build_micro_batch(items_of([small_group(), small_group()]), RowLayout.SHARED_PREFIX)

    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 1, 2, 3, 4, 5]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4] * 2]
    assert batch.source.tolist() == [2, 2, 4, 7, 7, 9]
    assert batch.spans is not None
    assert batch.spans == (Span(0, 3, ((1, 2),)), Span(5, 3, ((1, 2),)))


def test_completions_of_equal_length_are_adjacent_and_keep_offsets() -> None:
    batch = build_micro_batch(
        items_of([make_group((4, 1, 2, 4), prompt=6)]), RowLayout.SHARED_PREFIX
    )
    # one position less than tokens each, and none for the completion of one token
    assert batch.spans == (Span(0, 6, ((1, 1), (2, 3))),)
    assert batch.tokens.tolist() == [4, 5, 6, 0, 1, 2, 3, 7, 8, 9, 10]


def test_completions_without_gradient_are_skipped_without_changing_offsets() -> None:
    nothing_sampled = make_group((2,), inserted=slice(None), advantages=(1.0,))
    no_variance = make_group((4, 4), advantages=(0.0, 0.0))
    partly = make_group((3, 5), advantages=(0.0, 1.0))
    work = items_of([nothing_sampled, no_variance, partly], skip_zero_advantage=True)

    assert [[target.offset for target in item.targets] for item in work] == [[4 + 4 + 3]]
    assert work[0].targets[0].weight == 4.0


def test_completions_with_zero_advantage_are_packed_if_skipping_is_off() -> None:
    assert len(items_of([make_group((4, 4), advantages=(0.0, 0.0))])) == 1


@pytest.mark.parametrize("layout", RowLayout)
@pytest.mark.parametrize("budget", [1, 30, 64, 10_000])
def test_micro_batches_cover_sampled_tokens_once_within_budget(
    layout: RowLayout, budget: int
) -> None:
    work = items_of(uneven_groups())
    rows = plan_micro_batches(work, layout, budget)
    batches = [build_micro_batch(items, layout) for items in rows]

    total = sum(done.num_sampled for group in uneven_groups() for done in group.completions)
    assert sorted(token for batch in batches for token in batch.tokens.tolist()) == list(
        range(total)
    )
    for items, batch in zip(rows, batches, strict=True):
        is_single = len(items) == 1 and len(items[0].targets) == 1
        assert batch.input_ids.numel() <= budget or is_single


def test_group_above_budget_is_split_between_completions() -> None:
    rows = plan_micro_batches(
        items_of([make_group((9, 9, 9, 9), prompt=10)]), RowLayout.SHARED_PREFIX, 26
    )
    assert [[len(item.targets) for item in items] for items in rows] == [[2], [2]]


def test_shared_prefix_rows_may_use_entire_token_budget() -> None:
    work = items_of([make_group((9, 9), prompt=10, seed=seed) for seed in range(2)])
    assert [item.num_tokens for item in work] == [26, 26]
    assert [len(items) for items in plan_micro_batches(work, RowLayout.SHARED_PREFIX, 52)] == [2]
    assert [len(items) for items in plan_micro_batches(work, RowLayout.SHARED_PREFIX, 51)] == [1, 1]


def test_padded_rows_may_use_entire_token_budget() -> None:
    rows = plan_micro_batches(
        items_of([make_group((9, 9, 9, 9), prompt=10)]), RowLayout.PADDED, 2 * 18
    )
    assert [len(items) for items in rows] == [2, 2]


def test_padded_rows_have_length_of_longest_in_micro_batch() -> None:
    work = items_of([make_group((9, 9, 3, 3, 3, 3), prompt=10)])  # rows of 18 and 12 tokens
    rows = plan_micro_batches(work, RowLayout.PADDED, 2 * 18)
    assert [[item.num_tokens for item in items] for items in rows] == [[18, 18], [12] * 3, [12]]


def test_rank_balancing_is_even_and_deterministic() -> None:
    work = items_of([make_group((length,), prompt=10) for length in (40, 30, 30, 20, 10, 10, 1, 1)])
    shares = balance_over_ranks(work, 2)

    loads = [sum(item.num_tokens for item in share) for share in shares]
    assert sum(map(len, shares)) == len(work)
    assert abs(loads[0] - loads[1]) <= 10
    assert shares == balance_over_ranks(work, 2)


def test_rank_balancing_leaves_ranks_idle_when_groups_are_too_few() -> None:
    assert [len(share) for share in balance_over_ranks(items_of([make_group()]), 3)] == [1, 0, 0]


@pytest.mark.parametrize("layout", RowLayout)
def test_empty_micro_batch_does_not_have_targets(layout: RowLayout) -> None:
    batch = build_micro_batch([], layout)

    assert batch.input_ids.shape == (1, 1)
    assert fields_of_length_zero(batch) == [
        "advantages",
        "rollout_logprobs",
        "source",
        "targets",
        "tokens",
        "weights",
    ]


def fields_of_length_zero(batch: MicroBatch) -> list[str]:
    values = {name: getattr(batch, name) for name in MicroBatch.__slots__}
    return sorted(
        name
        for name, value in values.items()
        if isinstance(value, torch.Tensor) and value.numel() == 0
    )


@pytest.mark.row("A18")
def test_micro_batch_is_not_copied_on_cpu() -> None:
    batch = build_micro_batch(items_of([small_group()]), RowLayout.SHARED_PREFIX)
    assert batch.to(torch.device("cpu")) is batch
    assert not batch.input_ids.is_pinned()
