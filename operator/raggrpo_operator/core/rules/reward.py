"""Rules about rewards and the columns they read."""

import re
from collections.abc import Iterator

from raggrpo_api.fields.json_values import placeholders
from raggrpo_api.spec.placeholders import needs_context
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
        if term.name is RewardKind.JUDGE and not term.url:
            message = "a Judge has no address"
            remedy = "url: http://judge:8000/v1/chat/completions"
            yield Violation(f"{path}.url", Reason.REWARD_INCOMPLETE, message, remedy)
        if term.name is RewardKind.JUDGE and term.judge is None:
            message = "a Judge has no model and prompt"
            remedy = 'judge: {model: name, prompt: "... {completion} ..."}'
            yield Violation(f"{path}.judge", Reason.REWARD_INCOMPLETE, message, remedy)


def judge_can_grade(given: RuleInput) -> Iterator[Violation]:
    """Require a prompt with the completion, one way to read a grade, and a range for it."""
    for path, term in _terms(given):
        if term.judge is None:
            continue
        judge, at = term.judge, f"{path}.judge"
        if "completion" not in placeholders(judge.prompt):
            message, remedy = "the judge does not see the completion", "write {completion}"
            yield Violation(f"{at}.prompt", Reason.TEMPLATE_PLACEHOLDER, message, remedy)
        if judge.score_pattern and judge.score_path:
            message, remedy = "the grade is read in two ways", "give scorePattern or scorePath"
            yield Violation(f"{at}.scorePattern", Reason.JUDGE_UNREADABLE, message, remedy)
        if problem := _pattern_problem(judge.score_pattern):
            remedy = r"a Python regular expression such as Score: (\d+)"
            yield Violation(f"{at}.scorePattern", Reason.JUDGE_UNREADABLE, problem, remedy)
        if judge.lowest >= judge.highest:
            message = f"no grade lies between {judge.lowest:g} and {judge.highest:g}"
            remedy = "lowest below highest, such as 0 and 10"
            yield Violation(f"{at}.highest", Reason.JUDGE_UNREADABLE, message, remedy)


def _pattern_problem(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a regular expression: {' '.join(str(error).split())[:100]}"
    return ""


def reward_fields_are_used(given: RuleInput) -> Iterator[Violation]:
    """Warn of fields that this kind of reward ignores."""
    for path, term in _terms(given):
        if term.python and term.name is not RewardKind.PYTHON:
            message = f"reward {term.name} ignores python"
            remedy = "name: Python, or remove python"
            yield warning(f"{path}.python", Reason.REWARD_FIELD_UNUSED, message, remedy)
        if term.judge and term.name is not RewardKind.JUDGE:
            message = f"reward {term.name} ignores judge"
            remedy = "name: Judge, or remove judge"
            yield warning(f"{path}.judge", Reason.REWARD_FIELD_UNUSED, message, remedy)
        if term.url and term.name not in (RewardKind.HTTP, RewardKind.JUDGE):
            message = f"reward {term.name} ignores url"
            remedy = "name: Http or Judge, or remove url"
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
        "context": (columns.context, _reader_of_context(given)),
    }
    for name, (column, reader) in readers.items():
        if reader and not column:
            message = f"no column is named, and {reader} needs it"
            remedy = f"data.columns.{name}: {name}"
            yield Violation(f"spec.data.columns.{name}", Reason.COLUMN_NEEDED, message, remedy)


def _reader_of_context(given: RuleInput) -> str:
    if any(term.name is RewardKind.RAG_SCORE for _, term in _terms(given)):
        return "RagScore"
    named = needs_context(given.spec.retrieval, given.spec.reward)
    return "a template with {context}" if named else ""


def _terms(given: RuleInput) -> Iterator[tuple[str, RewardFunction]]:
    for index, term in enumerate(given.spec.reward.functions):
        yield f"spec.reward.functions[{index}]", term
