"""Translation of verl's multi-turn search to `spec.retrieval`. Pure: files come from `read`."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from .composition import Read
from .overrides import Unreadable
from .tools import COUNTERPARTS, SERVICE_FIELD, read_tools
from .translation import ROLLOUT, Translation

TOOLS: Final = f"{ROLLOUT}multi_turn.tool_config_path"


def read_tool_file(this: Translation, read: Read) -> None:
    """Read the tool configuration if the configuration refers to one."""
    if (path := this.given.get(TOOLS)) is None:
        return
    this.translated.add(TOOLS)
    text = read(str(path))
    if text is None:
        this.lines["missing"].append(f"{path} (from {TOOLS}): specify retrieval.endpoints instead")
        return
    try:
        this.tools = read_tools(text)
    except Unreadable as error:
        this.report_error(TOOLS, f"{path}: {error}")
    for tool in this.tools:
        if not tool.is_search:
            this.lines["unmapped"].append(f"tool {tool.name}: only search tools are supported")


def has_search(this: Translation) -> bool:
    """Return whether the policy searches, determined from its tools, or else from file names."""
    if this.tools:
        return any(tool.is_search for tool in this.tools)
    files = this.raw_text("data.train_files").lower()
    return "search" in this.raw_text(TOOLS) or "searchr1" in files


def map_retrieval(this: Translation) -> None:
    """Map multi-turn search and its tool to `spec.retrieval`."""
    turn = f"{ROLLOUT}multi_turn."
    if not has_search(this):
        return
    this.put(f"{turn}enable", "Search")
    if (turns := this.given.get(f"{turn}max_assistant_turns")) is not None:
        this.put(f"{turn}max_assistant_turns", max(1, int(turns) - 1), f"of {turns} turns")
    limit = this.given.get(f"{turn}max_tool_response_length", 256)
    this.translated.add(f"{turn}max_tool_response_length")
    this.report_error(
        f"{turn}max_tool_response_length",
        f"truncates all search results together to {limit} characters, in the middle; "
        "retrieval.maxPassageTokens limits the tokens of each passage",
    )
    endpoints = [_endpoint(this, tool.settings) for tool in this.tools if tool.is_search]
    placeholder = {"name": "search", "url": "http://127.0.0.1:8000/retrieve", "topK": 3}
    this.spec["retrieval"]["endpoints"] = endpoints[:1] or [placeholder]
    this.lines["unmapped"].append(
        "the search tool: its prompts use <tool_call>, but the policy must write "
        "<search>query</search>; describe this format in data.systemPrompt"
        + ("" if endpoints else ", and specify the service in retrieval.endpoints")
    )


def _endpoint(this: Translation, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the endpoint of verl's search tool, which uses the Search-R1 protocol."""
    endpoint: dict[str, Any] = {"name": "search", "role": "Retriever", "protocol": "SearchR1"}
    for name, value in settings.items():
        if field := COUNTERPARTS.get(name):
            endpoint[field] = value
            line = f"tools: {name} → spec.retrieval.endpoints[0].{field}: {value}"
            this.lines["mapped"].append(line)
        else:
            this.lines["unmapped"].append(f"tools: {name}={value}: no counterpart")
    if urlsplit(str(settings[SERVICE_FIELD])).hostname in ("127.0.0.1", "localhost", "0.0.0.0"):
        this.report_error(
            f"tools: {SERVICE_FIELD}",
            "the URL is local to the host; in a cluster, specify a Service",
        )
    return endpoint
