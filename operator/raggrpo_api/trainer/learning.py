"""Signs in a run's step history that it learns nothing. Pure.

A step may have several signs. A streak is a sign that every step has had since some step; a run
does not learn once a streak is as long as the window. Driver, operator and reports evaluate the
same metrics of the same steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import ApiModel, Count
from raggrpo_api.fields.text import Message


class NotLearningReason(StrEnum):
    """Why a run learns nothing; the first of several explains the others."""

    ALL_TRUNCATED = "AllTruncated"
    """Completions are cut at `data.maxResponseLength`."""
    NOTHING_PARSES = "NothingParses"
    """Completions lack the output that the reward reads."""
    NO_REWARD_SIGNAL = "NoRewardSignal"
    """Every reward is 0."""
    ZERO_VARIANCE = "ZeroVariance"
    """The rewards in each group are equal, so that no group contributes a gradient."""


MIN_SHARES: Final[Mapping[NotLearningReason, float]] = {
    NotLearningReason.ALL_TRUNCATED: 0.9,
    NotLearningReason.NOTHING_PARSES: 0.9,
    NotLearningReason.NO_REWARD_SIGNAL: 1.0,
    NotLearningReason.ZERO_VARIANCE: 1.0,
}
"""Minimum share of a step's completions or groups.

A single group with different rewards is a signal, but a few completions that end in time are not.
"""

_PROBLEMS: Final[Mapping[NotLearningReason, tuple[str, str]]] = {
    NotLearningReason.ALL_TRUNCATED: (
        "of completions are cut at data.maxResponseLength",
        "increase it, ask for shorter answers in the prompt, or check that the model can end a "
        "completion (eos_token)",
    ),
    NotLearningReason.NOTHING_PARSES: (
        "of completions lack the output that the reward reads (the fields of "
        "retrieval.actorOutput, reward.answerMarker or <answer>)",
        "describe the required format in the prompt, or start from a model that follows it",
    ),
    NotLearningReason.NO_REWARD_SIGNAL: (
        "of completions have reward 0",
        "compare completions and reference answers (monitoring.debug.modelOutput), try the reward "
        "with `raggrpo check`, or start with easier prompts",
    ),
    NotLearningReason.ZERO_VARIANCE: (
        "of groups have equal rewards and contribute no gradient",
        "use prompts that the model answers only sometimes, a finer reward, a larger rollout.n or "
        "a higher rollout.temperature",
    ),
}
"""Problem, after the share, and remedy."""


class Streak(ApiModel):
    """Consecutive steps, up to the newest one, with the same sign."""

    reason: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{1,32}$")]
    """A `NotLearningReason`; readers ignore others."""
    since: Count
    """First step."""
    share: Annotated[float, Field(ge=0.0, le=1.0)]
    """Mean share of the steps' completions or groups."""
    example: Message = ""
    """A completion of the newest step, or ""."""


def shares(metrics: Mapping[str, Any]) -> dict[NotLearningReason, float]:
    """Return the share of completions or groups for each sign that a step has.

    `metrics` are the step's metrics by name, as in the history; a missing metric is no sign.
    """
    parsed = metrics.get("parsed")
    measured = {
        NotLearningReason.ALL_TRUNCATED: metrics.get("truncated"),
        NotLearningReason.NOTHING_PARSES: None if parsed is None else 1.0 - parsed,
        NotLearningReason.NO_REWARD_SIGNAL: metrics.get("zero_reward"),
        NotLearningReason.ZERO_VARIANCE: metrics.get("zero_variance"),
    }
    return {
        reason: share
        for reason, share in measured.items()
        if share is not None and share >= MIN_SHARES[reason]
    }


def extended(
    streaks: Iterable[Streak],
    step: int,
    metrics: Mapping[str, Any],
    examples: Mapping[NotLearningReason, str] = {},
) -> list[Streak]:
    """Return the streaks after a further step; a streak ends if the step lacks its sign."""
    earlier = {each.reason: each for each in streaks}
    return [
        _with_step(earlier.get(reason), reason, step, share, examples.get(reason, ""))
        for reason, share in shares(metrics).items()
    ]


def streaks_of(history: Iterable[Mapping[str, Any]]) -> list[Streak]:
    """Return the streaks after the last step of a history, which has each step once, in order."""
    streaks: list[Streak] = []
    for record in history:
        streaks = extended(streaks, record["step"], record)
    return streaks


def window_steps(history_window: int, total_steps: int) -> int:
    """Return the number of steps after which a streak means that the run does not learn."""
    return min(history_window, total_steps)


def not_learning(streaks: Sequence[Streak], step: int, window: int) -> Streak | None:
    """Return why a run does not learn, or None if it may learn or has too few steps.

    `step` is the newest step; `window` is the minimum length of a streak in steps.
    """
    by_reason = {each.reason: each for each in streaks if step - each.since + 1 >= window}
    return next((by_reason[reason] for reason in NotLearningReason if reason in by_reason), None)


def not_learning_message(streak: Streak) -> str:
    """Return problem, first step, remedy and example of a streak with a known reason."""
    problem, remedy = _PROBLEMS[NotLearningReason(streak.reason)]
    example = f"; example: {streak.example}" if streak.example else ""
    return f"{_percent(streak.share)} {problem} since step {streak.since}: {remedy}{example}"


def _percent(share: float) -> str:
    """Return a share as text; only a share of 1 is "100 %"."""
    return "100 %" if share >= 1.0 else f"{min(99.9, 100 * share):.3g} %"


def _with_step(
    earlier: Streak | None, reason: NotLearningReason, step: int, share: float, example: str
) -> Streak:
    if earlier is None:
        return Streak(reason=reason, since=step, share=share, example=example)
    num_steps = max(1, step - earlier.since)
    mean = min(1.0, (earlier.share * num_steps + share) / (num_steps + 1))
    return Streak(reason=reason, since=earlier.since, share=mean, example=example)
