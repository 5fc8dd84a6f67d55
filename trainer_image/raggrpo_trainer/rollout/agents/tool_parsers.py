"""The parser for the tool calls of a model, by the markers in its chat template. Pure."""

from typing import Final

_MARKERS: Final = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ("<｜tool▁calls▁", "deepseek_v3"),
    ("<|tool_calls_section_", "kimi_k2"),
    ("<|tool_call|>", "granite"),
)
"""Marker of tool calls and name of vLLM's parser for it; the first match counts."""


def default_tool_parser(chat_template: str) -> str:
    """Return the name of the parser for a chat template, or "" if it is not known."""
    return next((parser for marker, parser in _MARKERS if marker in chat_template), "")
