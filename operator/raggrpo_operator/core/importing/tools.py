"""Reader of verl's tool configuration. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .overrides import Unreadable, parse_mapping

SERVICE_FIELD: Final = "retrieval_service_url"
COUNTERPARTS: Final[Mapping[str, str]] = {
    SERVICE_FIELD: "url",
    "topk": "topK",
    "timeout": "timeoutSeconds",
    "num_workers": "maxConcurrency",
}
"""Fields of an endpoint, by the equivalent setting of verl's search tool."""


@dataclass(frozen=True)
class Tool:
    """An entry of `tools`."""

    name: str
    """Name in tool calls."""
    settings: Mapping[str, Any]

    @property
    def is_search(self) -> bool:
        """Whether the tool calls a retrieval service."""
        return SERVICE_FIELD in self.settings


def read_tools(text: str) -> list[Tool]:
    """Return the tools in verl's tool YAML. Raises Unreadable."""
    tools = parse_mapping(text).get("tools")
    if not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools):
        raise Unreadable("it has no list of tools")
    return [_tool(each) for each in tools]


def _tool(raw: Mapping[str, Any]) -> Tool:
    settings, schema = (_mapping(raw.get(name)) for name in ("config", "tool_schema"))
    function = _mapping(schema.get("function"))
    name = function.get("name") or str(raw.get("class_name", "")).rpartition(".")[2]
    return Tool(str(name), settings)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
