"""The result of an application: answer, passages and reward, at the paths of the job. Pure."""

import json
from dataclasses import dataclass
from typing import Any

from raggrpo_api.fields.json_values import values_at
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.rewards.reward_value import finite_number

DEFAULT_ANSWER = "answer"
SHOWN_FIELDS = 8


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The parts of an application's result that rewards read."""

    answer: str
    passages: tuple[str, ...] = ()
    reward: float | None = None
    """Number that replaces the reward functions; None if the job has no path for it."""


def parse_result(result: Any, agent: AgentSpec) -> AgentResult:
    """Return the parts of a result. Raises CallFailed if a part is missing or of a wrong type."""
    answer = result
    if agent.answer or not isinstance(result, str):
        answer = _value_at(agent.answer or DEFAULT_ANSWER, result, "answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        detail = f"the answer is of type {type(answer).__name__}; return a text"
        raise CallFailed(FailureCause.WRONG_TYPE, detail)
    reward = None
    if agent.reward:
        reward = finite_number(_value_at(agent.reward, result, "reward"))
    return AgentResult(str(answer), _passages(agent, result), reward)


def _passages(agent: AgentSpec, result: Any) -> tuple[str, ...]:
    if not agent.passages:
        return ()
    matches = values_at(agent.passages, result)
    items = matches[0] if len(matches) == 1 and isinstance(matches[0], list) else matches
    return tuple(each if isinstance(each, str) else json.dumps(each) for each in items)


def _value_at(path: str, result: Any, field: str) -> Any:
    matches = values_at(path, result)
    if not matches or matches[0] is None:
        fields = f" with {', '.join([*result][:SHOWN_FIELDS])}" if isinstance(result, dict) else ""
        detail = f"{path} is missing in the result, {type(result).__name__}{fields}"
        raise CallFailed(
            FailureCause.MISSING_FIELD, f"{detail}; set rollout.agent.{field} to its path"
        )
    return matches[0]
