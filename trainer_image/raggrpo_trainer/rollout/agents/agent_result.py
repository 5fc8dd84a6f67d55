"""The result of an application: answer, passages and reward, at the paths of the job. Pure."""

import json
from dataclasses import dataclass
from typing import Any

from raggrpo_api.fields.json_values import values_at
from raggrpo_api.limits import MAX_PASSAGES_CHARACTERS
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.rewards.reward_value import finite_number

DEFAULT_ANSWER = "answer"
MAX_ANSWER = 1 << 17
"""Maximum characters of an answer, which rewards split into words."""
MAX_PASSAGES = 1000
"""Maximum number of passages that are used."""
SHOWN_FIELDS = 8
SHOWN_CHARACTERS = 40
"""Characters of a field's name in a message."""


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The parts of an application's result that rewards read."""

    answer: str
    passages: tuple[str, ...] = ()
    reward: float | None = None
    """Number that replaces the reward functions; None if the job has no path for it."""


def parse_result(result: Any, agent: AgentSpec) -> AgentResult:
    """Return the parts of a result.

    Raises CallFailed if a part is missing, too long or of a wrong type.
    """
    answer = result
    if agent.answer or not isinstance(result, str):
        answer = _value_at(agent.answer or DEFAULT_ANSWER, result, "answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        detail = f"the answer is of type {type(answer).__name__}; return a text"
        raise CallFailed(FailureCause.WRONG_TYPE, detail)
    text = str(answer)
    if len(text) > MAX_ANSWER:
        detail = (
            f"the answer has {len(text):,} characters, limit {MAX_ANSWER:,}; return a shorter text"
        )
        raise CallFailed(FailureCause.WRONG_TYPE, detail)
    reward = None
    if agent.reward:
        reward = finite_number(_value_at(agent.reward, result, "reward"))
    return AgentResult(text, _passages(agent, result), reward)


def _passages(agent: AgentSpec, result: Any) -> tuple[str, ...]:
    if not agent.passages:
        return ()
    matches = values_at(agent.passages, result)
    items = matches[0] if len(matches) == 1 and isinstance(matches[0], list) else matches
    passages: list[str] = []
    size = 0
    for each in items[:MAX_PASSAGES]:
        passages.append(each if isinstance(each, str) else json.dumps(each))
        size += len(passages[-1])
        if size > MAX_PASSAGES_CHARACTERS:
            detail = (
                f"{agent.passages}: the passages have more than {MAX_PASSAGES_CHARACTERS:,} "
                "characters; return fewer or shorter passages"
            )
            raise CallFailed(FailureCause.WRONG_TYPE, detail)
    return tuple(passages)


def _value_at(path: str, result: Any, field: str) -> Any:
    matches = values_at(path, result)
    if not matches or matches[0] is None:
        names = [*result][:SHOWN_FIELDS] if isinstance(result, dict) else []
        fields = f" with {', '.join(each[:SHOWN_CHARACTERS] for each in names)}" if names else ""
        detail = f"{path} is missing in the result, {type(result).__name__}{fields}"
        raise CallFailed(
            FailureCause.MISSING_FIELD, f"{detail}; set rollout.agent.{field} to its path"
        )
    return matches[0]
