"""Rules about rewards and the columns they read."""

from collections.abc import Iterator

from raggrpo_api.spec.reward import ANSWER_REWARDS, RewardFunction, RewardKind
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning


def reward_is_complete(given: RuleInput) -> Iterator[Violation]:
    """Require the function of a Python reward and the URL of an HTTP judge."""
    for path, term in _terms(given):
        if term.name is RewardKind.PYTHON and not term.python:
            message = "a Python reward names no function"
            remedy = "python: package.module:function"
            yield Violation(f"{path}.python", Reason.REWARD_INCOMPLETE, message, remedy)
        if term.name is RewardKind.HTTP and not term.url:
            message = "an Http reward has no address"
            remedy = "url: http://judge:8000/score"
            yield Violation(f"{path}.url", Reason.REWARD_INCOMPLETE, message, remedy)


def reward_fields_are_used(given: RuleInput) -> Iterator[Violation]:
    """Warn of fields that this kind of reward ignores."""
    for path, term in _terms(given):
        if term.python and term.name is not RewardKind.PYTHON:
            message = f"reward {term.name} ignores python"
            remedy = "name: Python, or remove python"
            yield warning(f"{path}.python", Reason.REWARD_FIELD_UNUSED, message, remedy)
        if term.url and term.name is not RewardKind.HTTP:
            message = f"reward {term.name} ignores url"
            remedy = "name: Http, or remove url"
            yield warning(f"{path}.url", Reason.REWARD_FIELD_UNUSED, message, remedy)


def some_reward_counts(given: RuleInput) -> Iterator[Violation]:
    """Reject rewards that are always zero, since they teach nothing."""
    if not any(term.weight for _, term in _terms(given)):
        message = "every weight is 0, so that all advantages are 0"
        remedy = "give at least one function a weight"
        yield Violation("spec.reward.functions", Reason.NO_REWARD, message, remedy)


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
            message = f"no column is named, and {reader} needs it"
            remedy = f"data.columns.{name}: {name}"
            yield Violation(f"spec.data.columns.{name}", Reason.COLUMN_NEEDED, message, remedy)


def _terms(given: RuleInput) -> Iterator[tuple[str, RewardFunction]]:
    for index, term in enumerate(given.spec.reward.functions):
        yield f"spec.reward.functions[{index}]", term
