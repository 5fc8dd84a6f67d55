"""Rules about rewards and the columns they read."""

from collections.abc import Iterator

from raggrpo_api.spec.reward import ANSWER_REWARDS, RewardFunction, RewardKind
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning


def reward_is_complete(given: RuleInput) -> Iterator[Violation]:
    """Require the function of a Python reward and the URL of an HTTP judge."""
    for path, term in _terms(given):
        if term.name is RewardKind.PYTHON and not term.python:
            yield Violation(
                f"{path}.python",
                Reason.REWARD_INCOMPLETE,
                "a Python reward names no function",
                "python: package.module:function",
            )
        if term.name is RewardKind.HTTP and not term.url:
            yield Violation(
                f"{path}.url",
                Reason.REWARD_INCOMPLETE,
                "an Http reward has no address",
                "url: http://judge:8000/score",
            )


def reward_fields_are_used(given: RuleInput) -> Iterator[Violation]:
    """Warn of fields that this kind of reward ignores."""
    for path, term in _terms(given):
        if term.python and term.name is not RewardKind.PYTHON:
            yield warning(
                f"{path}.python",
                Reason.REWARD_FIELD_UNUSED,
                f"reward {term.name} ignores python",
                "name: Python, or remove python",
            )
        if term.url and term.name is not RewardKind.HTTP:
            yield warning(
                f"{path}.url",
                Reason.REWARD_FIELD_UNUSED,
                f"reward {term.name} ignores url",
                "name: Http, or remove url",
            )


def some_reward_counts(given: RuleInput) -> Iterator[Violation]:
    """Reject rewards that are always zero, since they teach nothing."""
    if not any(term.weight for _, term in _terms(given)):
        yield Violation(
            "spec.reward.functions",
            Reason.NO_REWARD,
            "every weight is 0, so that all advantages are 0",
            "give at least one function a weight",
        )


def columns_are_named(given: RuleInput) -> Iterator[Violation]:
    """Require a column for everything that is read from the data."""
    columns, kinds = given.spec.data.columns, [term.name for _, term in _terms(given)]
    readers = {
        "prompt": (columns.prompt, "every sample"),
        "answer": (columns.answer, ", ".join(kind for kind in kinds if kind in ANSWER_REWARDS)),
        "context": (columns.context, "RagScore" if RewardKind.RAG_SCORE in kinds else ""),
    }
    for name, (column, reader) in readers.items():
        if reader and not column:
            yield Violation(
                f"spec.data.columns.{name}",
                Reason.COLUMN_NEEDED,
                f"no column is named, and {reader} needs it",
                f"data.columns.{name}: {name}",
            )


def _terms(given: RuleInput) -> Iterator[tuple[str, RewardFunction]]:
    for index, term in enumerate(given.spec.reward.functions):
        yield f"spec.reward.functions[{index}]", term
