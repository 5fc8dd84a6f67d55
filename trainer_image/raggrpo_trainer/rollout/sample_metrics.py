"""Metrics of a step's samples. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from raggrpo_api.fields.text import one_line
from raggrpo_api.trainer.learning import NotLearningReason
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.sample_metrics import SampleMetrics

from .samples import Rollouts, Sample

ROUNDING = 1e-6
"""Largest reward or advantage that is a rounding error of a weighted sum."""
MAX_COMPLETION = 160
"""Maximum characters of an example's completion."""
MAX_ANSWER = 64
"""Maximum characters of an example's reference answer."""
_SIGNS: Mapping[NotLearningReason, Callable[[Sample], bool]] = {
    NotLearningReason.ALL_TRUNCATED: lambda sample: sample.is_truncated,
    NotLearningReason.NOTHING_PARSES: lambda sample: sample.is_parsed is False,
    NotLearningReason.NO_REWARD_SIGNAL: lambda sample: _is_zero(sample.reward),
    NotLearningReason.ZERO_VARIANCE: lambda sample: sample.reward is not None,
}
"""Whether a sample is an example of a sign."""


def sample_metrics(rollouts: Rollouts, groups: Sequence[Group]) -> SampleMetrics:
    """Return the metrics of a step's samples; `groups` have the samples that may be trained on."""
    samples, scored = rollouts.samples, rollouts.scored
    rewards = [sample.reward for sample in scored if sample.reward is not None]
    terms = sorted({term for sample in scored for term in sample.parts})
    num_groups = len({sample.group for sample in samples})
    num_with_variance = sum(
        not all(map(_is_zero, group.advantages)) for group in groups if not group.continues
    )
    generated = [sample for sample in samples if sample.token_ids]
    parsed = [float(each.is_parsed) for each in samples if each.is_parsed is not None]
    return SampleMetrics(
        reward_mean=_mean(rewards),
        reward_std=statistics.pstdev(rewards) if rewards else None,
        reward_parts={
            term: statistics.fmean(sample.parts[term] for sample in scored) for term in terms
        },
        exact_match=rollouts.exact_match,
        num_samples=len(samples),
        num_failed=len(samples) - len(scored),
        zero_variance=1.0 - num_with_variance / max(1, num_groups),
        zero_reward=_mean([float(_is_zero(sample.reward)) for sample in samples]) or 0.0,
        truncated=_mean([float(sample.is_truncated) for sample in generated]),
        parsed=_mean(parsed),
        response_tokens=_mean([sample.num_sampled for sample in scored]) or 0.0,
        examples=_examples(samples),
    )


def _examples(samples: Sequence[Sample]) -> dict[NotLearningReason, str]:
    """Return a description of the first sample with each sign."""
    first = {reason: next(filter(has_sign, samples), None) for reason, has_sign in _SIGNS.items()}
    return {reason: _description(each) for reason, each in first.items() if each is not None}


def _description(sample: Sample) -> str:
    if sample.reward is None:
        return f"sample {sample.name} failed: {one_line(sample.failure, MAX_COMPLETION)}"
    answers = sample.prompt.answer
    expected = f", expected {one_line(answers[0], MAX_ANSWER)!r}" if answers else ""
    completion = _shortened(sample.text, MAX_COMPLETION)
    return f"sample {sample.name} has reward {sample.reward:g}{expected}: {completion!r}"


def _shortened(text: str, limit: int) -> str:
    """Return `text` in one line, without its middle if it is longer than `limit` characters."""
    if len(text) <= limit:
        return one_line(text, limit)
    half = limit // 2
    return f"{one_line(text[:half], half)} … {one_line(text[-half:], half)}"


def _is_zero(value: float | None) -> bool:
    """Return whether a reward, None if it is missing, or an advantage is 0 up to rounding."""
    return abs(value or 0.0) <= ROUNDING


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
