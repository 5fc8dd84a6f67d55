"""A gateway without engines, whose policy follows a script."""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from raggrpo_trainer.data.tokenizer import Tokenizer, token_ids
from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.gateway.calls import Session
from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from raggrpo_trainer.gateway.protocol import ChatRequest, CompletionOptions
from raggrpo_trainer.gateway.responses import Reply
from raggrpo_trainer.gateway.tool_parsing import ReplyParser

_TEXT: ContextVar[str] = ContextVar("text")
"""The completion of the current call."""


class ScriptedGateway(Gateway):
    """Completes each call with `answer`; with `calls_tools`, the first one with a tool call."""

    def __init__(
        self,
        options: GatewayOptions,
        tokenizer: Tokenizer,
        answer: str,
        parser: ReplyParser | None = None,
        forwarder: Forwarder | None = None,
        *,
        calls_tools: bool = False,
    ) -> None:
        super().__init__(options, tokenizer, self._sample, parser, forwarder)
        self.tools: set[str] = set()
        """Names of the tools in requests."""
        self.unread_call = ""
        """A tool call that the parser did not find in the text of the chat template."""
        self._script, self._calls_tools = answer, calls_tools
        eos = tokenizer.eos_token_id
        self._ends = [*([] if eos is None else [eos]), *options.stop_token_ids]

    async def complete(self, session: Session, request: CompletionOptions) -> Reply:
        """Return the completion of a request. Raises RequestRejected."""
        call = ""
        if isinstance(request, ChatRequest) and request.may_call_tools:
            self.tools |= {tool["function"]["name"] for tool in request.template_tools}
            if self._calls_tools and not session.trajectory.turns:
                call = self._written_call(request)
        _TEXT.set(call or self._script)
        reply = await super().complete(session, request)
        if call and not reply.turn.message.get("tool_calls"):
            self.unread_call = call
        return reply

    def _written_call(self, request: ChatRequest) -> str:
        """Return a call of the first tool as the chat template writes it, or ""."""
        function = request.template_tools[0]["function"]
        arguments = example_value(function.get("parameters") or {}, self._script)
        call = {"name": function["name"], "arguments": arguments}
        calls = [{"type": "function", "id": "call00000", "function": call}]
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        rest = self.written_message(request, message)
        ends = [rest.find(self.token_text(end)) for end in self._ends]
        return rest[: min((end for end in ends if end >= 0), default=0)]

    def _sample(self, requests: Sequence[GenerationRequest]) -> list["asyncio.Task[Generation]"]:
        return [asyncio.create_task(self._completion(request)) for request in requests]

    async def _completion(self, request: GenerationRequest) -> Generation:
        ids = (*token_ids(_TEXT.get(), self._tokenizer), *self._ends[:1])[: request.max_tokens]
        return Generation(ids, (0.0,) * len(ids), "stop", 0)


def example_value(schema: Mapping[str, Any], text: str) -> Any:
    """Return a value for a JSON schema; texts are `text`."""
    if "default" in schema:
        return schema["default"]
    if choices := schema.get("enum"):
        return choices[0]
    for name in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(name) or []:
            if option.get("type") != "null":
                return example_value(option, text)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "array":
            return [example_value(schema.get("items") or {}, text)]
        case "string":
            return text
    properties = schema.get("properties") or {}
    return {name: example_value(each, text) for name, each in properties.items()}
