"""A parser of tool calls without vLLM."""

import json
import re

from raggrpo_trainer.gateway.tool_parsing import ParsedReply, SampledReply, ToolCall

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class JsonCallParser:
    """Parses `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as vLLM's parser `hermes`."""

    async def parse(self, reply: SampledReply) -> ParsedReply:
        text = reply.text
        calls = _CALL.findall(text) if reply.tools else []
        if not calls:
            return ParsedReply(text)
        try:
            values = [json.loads(call) for call in calls]
            parsed = tuple(ToolCall(each["name"], json.dumps(each["arguments"])) for each in values)
        except (ValueError, KeyError, TypeError):
            return ParsedReply(text)
        return ParsedReply(text[: text.index("<tool_call>")], tool_calls=parsed)
