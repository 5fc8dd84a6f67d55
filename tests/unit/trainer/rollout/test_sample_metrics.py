"""Metrics of a step's samples, and examples of samples without reward, format or end."""

from collections.abc import Sequence
from typing import Any

import pytest

from raggrpo_api.trainer.learning import NotLearningReason as Why
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.exchange.sample_metrics import SampleMetrics
from raggrpo_trainer.rollout.advantage import group_advantages
from raggrpo_trainer.rollout.failure_ledger import FailureLedger
from raggrpo_trainer.rollout.sample_metrics import sample_metrics
from raggrpo_trainer.rollout.samples import Rollouts, Sample


def make_sample(group: int = 0, index: int = 0, **values: Any) -> Sample:
    prompt = Prompt(group, "q", query="q", answer=("right",), context="")
    defaults: dict[str, Any] = {"token_ids": [1], "sampled": [True], "is_parsed": True}
    return Sample(prompt, index, group, **(defaults | {"text": "an answer"} | values))


def make_group(rewards: Sequence[float | None]) -> Group:
    advantages = group_advantages(rewards, normalize_by_std=True)
    valid = tuple(each for each in advantages if each is not None)
    return Group((1,), (Completion((1,), (True,), (0.0,)),) * len(valid), valid)


def metrics_of(*rewards_by_group: Sequence[float | None]) -> SampleMetrics:
    """Return the metrics of samples that failed if their reward is None."""
    samples = [
        make_sample(group, index, reward=reward, failure="down" if reward is None else "")
        for group, rewards in enumerate(rewards_by_group)
        for index, reward in enumerate(rewards)
    ]
    groups = [make_group(each) for each in rewards_by_group if any(r is not None for r in each)]
    return sample_metrics(Rollouts(tuple(samples), {}, FailureLedger()), groups)


@pytest.mark.parametrize(
    ("rewards", "zero_reward", "zero_variance"),
    [
        ([(0.0, 0.0), (0.0, 0.0)], 1.0, 1.0),
        ([(1.0, 1.0), (0.5, 0.5)], 0.0, 1.0),
        ([(1.0, 0.0), (0.5, 0.5)], 0.25, 0.5),
        ([(-1.0, -1.0)], 0.0, 1.0),
        ([(None, None), (1.0, 0.0)], 0.75, 0.5),
        ([(None, None)], 1.0, 1.0),
        ([(None, 1.0)], 0.5, 1.0),
        ([(0.3, 0.1 + 0.2)], 0.0, 1.0),
        ([(0.1 + 0.2 - 0.3, 0.0)], 1.0, 1.0),
        ([(0.001, 0.0)], 0.5, 0.0),
    ],
)
def test_metrics_count_zero_rewards_and_groups_without_variance(
    rewards: list[Sequence[float | None]], zero_reward: float, zero_variance: float
) -> None:
    metrics = metrics_of(*rewards)
    assert (metrics.zero_reward, metrics.zero_variance) == (zero_reward, zero_variance)


def test_share_of_truncated_completions_ignores_samples_without_completion() -> None:
    samples = (
        make_sample(index=0, reward=0.0, is_truncated=True),
        make_sample(index=1, reward=1.0, is_parsed=False),
        make_sample(index=2, failure="retrieval failed", token_ids=[], sampled=[], is_parsed=None),
    )
    metrics = sample_metrics(Rollouts(samples, {}, FailureLedger()), [])
    assert (metrics.truncated, metrics.parsed) == (0.5, 0.5)


def test_shares_are_unknown_without_completions() -> None:
    failed = make_sample(failure="down", token_ids=[], sampled=[], is_parsed=None)
    metrics = sample_metrics(Rollouts((failed,), {}, FailureLedger()), [])
    assert (metrics.truncated, metrics.parsed) == (None, None)


def test_each_sign_has_first_sample_with_it_as_example() -> None:
    samples = (
        make_sample(index=0, reward=1.0),
        make_sample(index=1, reward=0.0, text="wrong\nanswer"),
        make_sample(index=2, reward=0.5, is_truncated=True, text="on and on " * 100),
        make_sample(index=3, failure="kb: HTTP 500"),
    )

    examples = sample_metrics(Rollouts(samples, {}, FailureLedger()), []).examples

    assert examples[Why.NO_REWARD_SIGNAL] == (
        "sample 0/1 has reward 0, expected 'right': 'wrong answer'"
    )
    assert examples[Why.ZERO_VARIANCE].startswith("sample 0/0 has reward 1")
    truncated = examples[Why.ALL_TRUNCATED]
    assert truncated.startswith("sample 0/2 has reward 0.5, expected 'right': 'on and on")
    assert " … " in truncated
    assert len(truncated) < 250
    assert Why.NOTHING_PARSES not in examples


def test_failed_sample_as_example_shows_its_failure() -> None:
    failed = make_sample(failure="kb: HTTP 500", token_ids=[], sampled=[])
    examples = sample_metrics(Rollouts((failed,), {}, FailureLedger()), []).examples
    assert examples[Why.NO_REWARD_SIGNAL] == "sample 0/0 failed: kb: HTTP 500"
