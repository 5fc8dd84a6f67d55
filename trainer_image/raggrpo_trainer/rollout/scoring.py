"""Inputs of the rewards of a sample, and the record of its score."""

import logging
from collections.abc import Mapping

from raggrpo_trainer.rewards.rewards import RewardSample, Score

from .samples import Sample

log = logging.getLogger(__name__)


def reward_sample(
    sample: Sample, completion: str, fields: Mapping[str, str] | None = None
) -> RewardSample:
    """Return the inputs of the rewards of a sample; `fields` are those that the policy wrote."""
    return RewardSample(
        name=sample.name,
        prompt=sample.prompt.text,
        completion=completion,
        answers=sample.prompt.answer,
        context=sample.prompt.context,
        passages=sample.passages,
        fields=fields,
        columns=sample.prompt.columns,
    )


def record_score(sample: Sample, score: Score, *, is_logged: bool) -> None:
    """Record the score of a sample."""
    sample.reward, sample.parts = score.total, dict(score.parts)
    sample.exact_match = score.exact_match
    if is_logged:
        log.info("sample %s: reward %.4f from parts %s", sample.name, score.total, sample.parts)
