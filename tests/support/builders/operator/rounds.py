"""Helpers for tests of single rounds: times, conditions and decisions."""

from datetime import datetime, timedelta
from itertools import pairwise

from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.lifecycle.round import Decision
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.kubernetes_runtime.rounds.events import Transition, transitions
from support.fakes.fake_runtime import T0, Scenario


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def make_condition(
    kind: ConditionType, status: str, reason: str, since: float = 0, generation: int = 0
) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        last_transition_time=at(since),
        observed_generation=generation,
    )


def condition_of(decision: Decision, kind: ConditionType) -> tuple[str, str]:
    condition = get_condition(decision.status, kind)
    return condition.status, condition.reason


def kinds(decision: Decision) -> list[type]:
    return [type(action) for action in decision.actions]


def is_soon(decision: Decision) -> bool:
    """Return whether the next round is due within a second, but not immediately."""
    return decision.requeue_after is not None and 0 < decision.requeue_after <= 1


def events(scenario: Scenario) -> list[Transition]:
    """Return a job's Events, from its first status to its last."""
    statuses = [JobStatus(), *scenario.runtime.statuses]
    return [each for old, new in pairwise(statuses) for each in transitions(old, new)]


def notes(scenario: Scenario) -> list[str]:
    """Return the notes of a job's Events."""
    return [each.note for each in events(scenario)]
