"""The meaning of model names in requests: the policy, or models at other endpoints. Pure."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .protocol import RequestRejected


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible API that serves models which are not trained."""

    models: tuple[str, ...]
    """Patterns of model names; `*` stands for any characters."""
    url: str
    """Base URL, to which the path of a call is added."""
    api_key: str = field(default="", repr=False)


class _Route(NamedTuple):
    pattern: str
    endpoint: Endpoint | None
    """None: the policy."""

    def matches(self, name: str) -> bool:
        literal = self.pattern.replace("[", "[[]").replace("?", "[?]")  # only `*` is special
        return fnmatch.fnmatchcase(name, literal)

    @property
    def specificity(self) -> tuple[bool, int]:
        return "*" not in self.pattern, len(self.pattern)


class ModelNames:
    """Assigns model names to the policy and to endpoints; of several patterns, the longest."""

    def __init__(self, policy: Sequence[str], endpoints: Sequence[Endpoint] = ()) -> None:
        self._policy = policy
        self._routes = [_Route(pattern, None) for pattern in policy]
        self._routes += [_Route(name, each) for each in endpoints for name in each.models]

    def endpoint(self, name: str) -> Endpoint | None:
        """Return the endpoint of a model, or None for the policy. Raises RequestRejected."""
        routes = [route for route in self._routes if route.matches(name)]
        if not routes:
            raise self._unknown(name)
        return max(routes, key=lambda route: route.specificity).endpoint

    def listed(self) -> list[str]:
        """Return the names without patterns, and `policy` if the policy has no other."""
        names = [route.pattern for route in self._routes if "*" not in route.pattern]
        has_name = any("*" not in pattern for pattern in self._policy)
        return names if has_name else ["policy", *names]

    def _unknown(self, name: str) -> RequestRejected:
        forwarded = [route.pattern for route in self._routes if route.endpoint is not None]
        others = f", and {', '.join(forwarded)} are forwarded" if forwarded else ""
        message = (
            f"model {name!r:.100} does not exist; the policy is served as {', '.join(self._policy)}"
            f"{others}: add the name to rollout.agent.policyModels, or to rollout.agent.forward"
        )
        return RequestRejected(404, message, param="model", code="model_not_found")
