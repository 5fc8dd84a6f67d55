"""Rules on rewards and the columns they read."""

import re
from collections.abc import Iterator

from raggrpo_api.fields.json_values import placeholders
from raggrpo_api.spec.data import Columns
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.placeholders import needs_context
from raggrpo_api.spec.reward import (
    ANSWER_REWARDS,
    SERVICE_REWARDS,
    JudgeSpec,
    PythonSignature,
    RewardFunction,
    RewardKind,
    RewardSpec,
)
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import HAS_RAG_SCORE, if_specified, specified, value_or
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

_READS_ANSWER = (
    f"(!({specified('reward.functions')}) || "
    f"self.reward.functions.exists(f, f.name in {list(map(str, ANSWER_REWARDS))}))"
)


def uses_rag_score(spec: JobSpec) -> bool:
    """Return whether RagScore is one of the rewards."""
    return any(term.name is RewardKind.RAG_SCORE for term in spec.reward.functions)


@spec_rule(
    "spec.reward.functions[]",
    field="python",
    reason=Reason.REWARD_INCOMPLETE,
    message="the Python reward needs a function",
    remedy="set python: package.module:function",
    cel="self.name != 'Python' || (has(self.python) && size(self.python) > 0)",
)
def python_reward_has_function(term: RewardFunction) -> bool:
    """Require a function for reward Python."""
    return term.name is not RewardKind.PYTHON or bool(term.python)


@spec_rule(
    "spec.reward.functions[]",
    field="url",
    reason=Reason.REWARD_INCOMPLETE,
    message="Http and Judge rewards need a URL",
    remedy="set url: http://judge:8000/score for Http, http://judge:8000/v1/chat/completions for "
    "Judge",
    cel="!(self.name in ['Http', 'Judge']) || (has(self.url) && size(self.url) > 0)",
)
def http_reward_has_url(term: RewardFunction) -> bool:
    """Require a URL for rewards Http and Judge."""
    return term.name not in SERVICE_REWARDS or bool(term.url)


@spec_rule(
    "spec.reward.functions[]",
    field="judge",
    reason=Reason.REWARD_INCOMPLETE,
    message="reward Judge needs a model and a prompt",
    remedy='set judge: {model: name, prompt: "... {completion} ..."}',
    cel="self.name != 'Judge' || has(self.judge)",
)
def judge_has_model(term: RewardFunction) -> bool:
    """Require a model and a prompt for reward Judge."""
    return term.name is not RewardKind.JUDGE or term.judge is not None


@spec_rule(
    "spec.reward.functions[].judge",
    field="highest",
    reason=Reason.JUDGE_UNREADABLE,
    message="highest is not above lowest",
    values=lambda judge: f"{judge.highest:g}, {judge.lowest:g}",
    remedy="set lowest: 0 and highest: 10, which are usual",
    cel=f"double({value_or('lowest', '0.0')}) < double({value_or('highest', '10.0')})",
)
def judge_has_a_range(judge: JudgeSpec) -> bool:
    """Require the highest grade to exceed the lowest grade."""
    return judge.lowest < judge.highest


def judge_can_grade(inputs: RuleInput) -> Iterator[Violation]:
    """Require a judge prompt with the completion, and one valid source of the grade."""
    for path, term in _terms(inputs):
        if term.judge is None:
            continue
        judge, at = term.judge, f"{path}.judge"
        if "completion" not in placeholders(judge.prompt):
            message, remedy = "the prompt has no placeholder for the completion", "add {completion}"
            yield Violation(f"{at}.prompt", Reason.TEMPLATE_PLACEHOLDER, message, remedy)
        if judge.score_pattern and judge.score_path:
            message = "scorePattern and scorePath are both specified"
            remedy = "remove one of the two"
            yield Violation(f"{at}.scorePattern", Reason.JUDGE_UNREADABLE, message, remedy)
        if problem := _pattern_problem(judge.score_pattern):
            remedy = r"specify a Python regular expression such as Score: (\d+)"
            yield Violation(f"{at}.scorePattern", Reason.JUDGE_UNREADABLE, problem, remedy)


def _pattern_problem(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"scorePattern is not a regular expression: {' '.join(str(error).split())[:100]}"
    return ""


def reward_fields_are_used(inputs: RuleInput) -> Iterator[Violation]:
    """Warn about fields that this kind of reward ignores."""
    for path, term in _terms(inputs):
        if term.python and term.name is not RewardKind.PYTHON:
            message = f"reward {term.name} ignores python"
            remedy = "set name: Python, or remove python"
            yield warning(f"{path}.python", Reason.REWARD_FIELD_UNUSED, message, remedy)
        if term.signature is not PythonSignature.NATIVE and term.name is not RewardKind.PYTHON:
            message = f"reward {term.name} ignores signature"
            remedy = "set name: Python, or remove signature"
            yield warning(f"{path}.signature", Reason.REWARD_FIELD_UNUSED, message, remedy)
        if term.judge and term.name is not RewardKind.JUDGE:
            message = f"reward {term.name} ignores judge"
            remedy = "set name: Judge, or remove judge"
            yield warning(f"{path}.judge", Reason.REWARD_FIELD_UNUSED, message, remedy)
        if term.url and term.name not in SERVICE_REWARDS:
            message = f"reward {term.name} ignores url"
            remedy = "set name: Http or Judge, or remove url"
            yield warning(f"{path}.url", Reason.REWARD_FIELD_UNUSED, message, remedy)


@spec_rule(
    "spec.reward",
    field="functions",
    reason=Reason.NO_REWARD,
    message="all weights are 0, so all advantages are 0",
    remedy="set a weight other than 0 for at least one function",
    cel=if_specified(
        ("functions",), "self.functions.exists(f, !has(f.weight) || double(f.weight) != 0.0)"
    ),
)
def reward_has_weight(reward: RewardSpec) -> bool:
    """Reject weights that are all 0, because every reward would be 0."""
    return any(term.weight for term in reward.functions)


@spec_rule(
    "spec.data.columns",
    field="prompt",
    reason=Reason.COLUMN_NEEDED,
    message="no column is specified for the prompts",
    remedy="set data.columns.prompt: prompt",
    cel="!has(self.prompt) || size(self.prompt) > 0",
)
def prompt_column_is_named(columns: Columns) -> bool:
    """Require the name of the prompt column."""
    return bool(columns.prompt)


@spec_rule(
    "spec",
    field="data.columns.answer",
    reason=Reason.COLUMN_NEEDED,
    message="rewards ExactMatch, F1 and Contains need an answer column, but none is specified",
    remedy="set data.columns.answer: answer",
    cel=f"!({specified('data.columns.answer')}) || size(self.data.columns.answer) > 0 || "
    f"!{_READS_ANSWER}",
)
def answer_column_is_named(spec: JobSpec) -> bool:
    """Require the name of the answer column if a reward compares completions with answers."""
    reads_answer = any(term.name in ANSWER_REWARDS for term in spec.reward.functions)
    return bool(spec.data.columns.answer) or not reads_answer


@spec_rule(
    "spec",
    field="data.columns.context",
    reason=Reason.COLUMN_NEEDED,
    message="reward RagScore needs a context column, but none is specified",
    remedy="set data.columns.context: context",
    cel=f"!({specified('data.columns.context')}) || size(self.data.columns.context) > 0 || "
    f"!{HAS_RAG_SCORE}",
)
def context_column_is_named(spec: JobSpec) -> bool:
    """Require the name of the context column for reward RagScore."""
    return bool(spec.data.columns.context) or not uses_rag_score(spec)


def template_context_is_named(inputs: RuleInput) -> Iterator[Violation]:
    """Require the name of the context column if a template contains {context}."""
    spec = inputs.spec
    is_read = not uses_rag_score(spec) and needs_context(
        spec.retrieval, spec.reward, spec.rollout.agent
    )
    if is_read and not spec.data.columns.context:
        message = "a template contains {context}, but no context column is specified"
        remedy = "set data.columns.context: context"
        yield Violation("spec.data.columns.context", Reason.COLUMN_NEEDED, message, remedy)


def _terms(inputs: RuleInput) -> Iterator[tuple[str, RewardFunction]]:
    for index, term in enumerate(inputs.spec.reward.functions):
        yield f"spec.reward.functions[{index}]", term
