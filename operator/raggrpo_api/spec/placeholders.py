"""Which placeholders a job's request templates have, and which of them are columns of its data."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from raggrpo_api.fields.json_values import placeholders
from raggrpo_api.spec.retrieval import EndpointProtocol, EndpointRole, RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec

SHARED_PLACEHOLDERS: Final = frozenset({"top_k", "score_threshold", "message_id"})
"""What belongs to no one sample."""
CALL_PLACEHOLDERS: Final = SHARED_PLACEHOLDERS | {"question", "context"}
"""What every call to an endpoint knows; with role Actor also the fields that the actor wrote."""
JUDGE_PLACEHOLDERS: Final = frozenset(
    {"prompt", "question", "completion", "answer", "context", "passages", "message_id"}
)
"""What a judge's prompt may name; in mode Reward also the fields that the actor wrote."""


def column_placeholders(retrieval: RetrievalSpec, reward: RewardSpec | None) -> Mapping[str, str]:
    """Return the columns that templates name, each with the place of a template that does."""
    found: dict[str, str] = {}
    actor_fields = frozenset(retrieval.actor_output.fields)
    for index, endpoint in enumerate(retrieval.endpoints):
        known = CALL_PLACEHOLDERS
        if endpoint.role is EndpointRole.ACTOR:
            known |= actor_fields
        place = f"retrieval.endpoints[{index}]"
        parts: dict[str, Any] = {"extraBody": endpoint.extra_body}
        if endpoint.protocol is EndpointProtocol.HTTP:
            parts = {"body": endpoint.body, "url": endpoint.url}
        for field, template in parts.items():
            for name in sorted(placeholders(template) - known):
                found.setdefault(name, f"{place}.{field}")
    if reward is not None:
        for place, name in _of_judges(reward, JUDGE_PLACEHOLDERS | actor_fields):
            found.setdefault(name, place)
    return found


def needs_context(retrieval: RetrievalSpec, reward: RewardSpec | None) -> bool:
    """Return whether a template names {context}, which is read from data.columns.context."""
    endpoints = [[e.extra_body, e.body, e.url] for e in retrieval.endpoints]
    judges = [[j.prompt, j.system, j.extra_body] for _, j in reward.judges] if reward else []
    return "context" in placeholders([*endpoints, *judges])


def _of_judges(reward: RewardSpec, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    for index, judge in reward.judges:
        parts = {"prompt": judge.prompt, "system": judge.system, "extraBody": judge.extra_body}
        for field, template in parts.items():
            for name in sorted(placeholders(template) - known):
                yield f"reward.functions[{index}].judge.{field}", name
