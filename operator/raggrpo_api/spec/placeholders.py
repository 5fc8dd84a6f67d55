"""Placeholders of request templates, and the data columns that they require."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from raggrpo_api.fields.json_values import placeholders
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.spec.retrieval import EndpointProtocol, EndpointRole, RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec

SHARED_PLACEHOLDERS: Final = frozenset({"top_k", "score_threshold", "message_id"})
"""Placeholders that do not depend on a sample."""
CALL_PLACEHOLDERS: Final = SHARED_PLACEHOLDERS | {"question", "context"}
"""Placeholders of endpoint calls; for role Actor, the fields that the policy wrote are added."""
JUDGE_PLACEHOLDERS: Final = frozenset(
    {"prompt", "question", "completion", "answer", "context", "passages", "message_id"}
)
"""Placeholders of judge prompts; in mode Reward, the fields that the policy wrote are added."""

GATEWAY_PLACEHOLDERS: Final = frozenset({"baseUrl", "apiKey"})
"""Placeholders of requests to an agent that the gateway fills in."""
AGENT_PLACEHOLDERS: Final = GATEWAY_PLACEHOLDERS | {"question", "prompt", "context", "message_id"}
"""Placeholders of requests to an agent."""


def column_placeholders(
    retrieval: RetrievalSpec, reward: RewardSpec | None, agent: AgentSpec | None = None
) -> Mapping[str, str]:
    """Return each column that templates require, with the path of the first template using it."""
    columns: dict[str, str] = {}
    actor_fields = frozenset(retrieval.actor_output.fields)
    for index, endpoint in enumerate(retrieval.endpoints):
        known = CALL_PLACEHOLDERS
        if endpoint.role is EndpointRole.ACTOR:
            known |= actor_fields
        place = f"retrieval.endpoints[{index}]"
        templates: dict[str, Any] = {"extraBody": endpoint.extra_body}
        if endpoint.protocol is EndpointProtocol.HTTP:
            templates = {"body": endpoint.body, "url": endpoint.url}
        for field, template in templates.items():
            for name in sorted(placeholders(template) - known):
                columns.setdefault(name, f"{place}.{field}")
    if reward is not None:
        for place, name in _judge_columns(reward, JUDGE_PLACEHOLDERS | actor_fields):
            columns.setdefault(name, place)
    if agent is not None:
        for name in sorted(placeholders(agent.request) - AGENT_PLACEHOLDERS):
            columns.setdefault(name, "rollout.agent.request")
    return columns


def needs_context(
    retrieval: RetrievalSpec, reward: RewardSpec | None, agent: AgentSpec | None = None
) -> bool:
    """Return whether a template contains {context}, the value of column data.columns.context."""
    endpoints = [[e.extra_body, e.body, e.url] for e in retrieval.endpoints]
    judges = [[j.prompt, j.system, j.extra_body] for _, j in reward.judges] if reward else []
    requests = [agent.request] if agent is not None else []
    return "context" in placeholders([*endpoints, *judges, *requests])


def _judge_columns(reward: RewardSpec, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    for index, judge in reward.judges:
        templates = {"prompt": judge.prompt, "system": judge.system, "extraBody": judge.extra_body}
        for field, template in templates.items():
            for name in sorted(placeholders(template) - known):
                yield f"reward.functions[{index}].judge.{field}", name
