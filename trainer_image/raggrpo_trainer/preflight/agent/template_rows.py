"""Whether messages after a reply continue its row, as the chat template renders them."""

from typing import Any

from raggrpo_trainer.data.tokenizer import Tokenizer
from raggrpo_trainer.gateway.gateway import GatewayOptions
from raggrpo_trainer.gateway.protocol import ChatRequest, RequestRejected
from raggrpo_trainer.gateway.tool_parsing import ParsedReply, SampledReply, ToolCall

from .scripted_policy import ScriptedGateway

QUESTION = {"role": "user", "content": "Which sea lies there?"}
FOLLOW_UP = {"role": "user", "content": "Why?"}
TOOL: Any = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {}}},
}


class _CallReader:
    """Reads each reply with tools as a call, so that no parser of vLLM is needed."""

    async def parse(self, reply: SampledReply) -> ParsedReply:
        """Return the parts of a reply."""
        calls = (ToolCall("search", "{}", "call00000"),) if reply.tools else ()
        return ParsedReply("" if calls else reply.text, "", calls)


async def template_rows(options: GatewayOptions, tokenizer: Tokenizer) -> dict[str, str]:
    """Return for each kind of message whether it continues the row of the reply before it."""
    kinds: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "a new user message": ([], FOLLOW_UP),
        "a tool result": (
            [TOOL],
            {"role": "tool", "tool_call_id": "call00000", "name": "search", "content": "A sea."},
        ),
    }
    return {
        kind: await _effect(options, tokenizer, tools, message)
        for kind, (tools, message) in kinds.items()
    }


async def _effect(
    options: GatewayOptions, tokenizer: Tokenizer, tools: list[Any], message: dict[str, Any]
) -> str:
    gateway = ScriptedGateway(options, tokenizer, "A sea.", _CallReader(), calls_tools=True)
    trajectory = gateway.open("probe", (0,), 0.0, 1.0)
    session = gateway.session("probe")
    assert session is not None
    messages: list[Any] = [QUESTION]
    try:
        for _ in range(2):
            body = {"model": "policy", "messages": messages, "tools": tools}
            reply = await gateway.complete(session, ChatRequest.model_validate(body))
            messages = [*messages, dict(reply.turn.message), message]
    except RequestRejected as error:
        return f"is rejected ({error})"
    return "starts a new row" if trajectory.turns[1].prompt.parent is None else "continues its row"
