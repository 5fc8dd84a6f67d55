import pytest

from raggrpo_trainer.exchange.groups import Completion, Group, mini_batches, samples_of


def make_group(*samples: int | None, continues: bool = False) -> Group:
    completions = tuple(Completion((1,), (True,), (0.0,), sample) for sample in samples)
    return Group((0,), completions, (0.0,) * len(samples), continues)


def test_completions_without_sample_are_samples_of_their_own() -> None:
    keys = samples_of([make_group(None, None), make_group(7, 7), make_group(7, continues=True)])

    assert len({*keys}) == 3
    assert keys[2] == keys[3] == keys[4]


@pytest.mark.parametrize(
    ("num_prompts", "expected"),
    [(0, [5]), (1, [2, 1, 2]), (2, [3, 2]), (3, [5]), (9, [5])],
)
def test_mini_batches_count_prompts_not_groups(num_prompts: int, expected: list[int]) -> None:
    groups = [
        make_group(0, 1), make_group(1, continues=True),
        make_group(2),
        make_group(3), make_group(3, continues=True),
    ]  # fmt: skip

    batches = list(mini_batches(groups, num_prompts))

    assert [len(batch) for batch in batches] == expected
    assert [group for batch in batches for group in batch] == groups


def test_step_without_groups_is_one_empty_mini_batch() -> None:
    assert [list(batch) for batch in mini_batches([], 2)] == [[]]
