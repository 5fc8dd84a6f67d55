"""Render requests as text and tokens, as vLLM does for serving. Pure."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes

from raggrpo_trainer.data.conversation import InvalidValue, Message, render_messages
from raggrpo_trainer.data.tokenizer import (
    MAX_TOKEN_CHARACTERS,
    Tokenizer,
    leading_tokens,
    prompt_ids,
    token_ids,
)

from .protocol import ChatRequest, RequestRejected
from .trajectory import Prompt, Trajectory, TrajectoryCause, Turn

MAX_FIRST_PROMPTS = 64
"""Number of prompts whose tokens are kept."""
_MARK = "\ue000{}\ue001"
"""Content of a message that is replaced after rendering: characters for private use."""


class Renderer:
    """Renders requests with the tokenizer and the chat template of the job."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        # The samples of a prompt start with the same request.
        self._first_chat_ids = lru_cache(MAX_FIRST_PROMPTS)(self._chat_ids)
        self._context_length = context_length

    def chat_prompt(self, request: ChatRequest, trajectory: Trajectory) -> Prompt:
        """Return the prompt of a chat completion. Raises InvalidValue or RequestRejected."""
        text = self._chat_text(request, trajectory)
        self._require_length(text)
        return trajectory.prompt(text, self._first_chat_ids, self._next_ids)

    def written_message(self, request: ChatRequest, message: Message) -> str:
        """Return what the template writes after a prompt if a message follows, or "".

        Raises InvalidValue.
        """
        messages = self._messages(request)
        before = self._render(messages, request)
        after = self._render([*messages, template_message(message, takes_parts=False)], request)
        return after.removeprefix(before) if after.startswith(before) else ""

    def text_prompt(self, text: str, trajectory: Trajectory) -> Prompt:
        """Return the prompt of a completion of plain text. Raises RequestRejected."""
        self._require_length(text)
        return trajectory.prompt(text, self._first_ids, self._next_ids)

    def _require_length(self, text: str) -> None:
        """Raise RequestRejected for a text whose tokens would need much memory in vain."""
        limit = MAX_TOKEN_CHARACTERS * self._context_length
        if len(text) > limit:
            raise RequestRejected(
                400,
                f"the prompt has {len(text):,} characters, and the model's maximum context length "
                f"is {self._context_length} tokens",
                param="messages",
                code="context_length_exceeded",
                cause=TrajectoryCause.CONTEXT_LENGTH,
            )

    def _chat_ids(self, text: str) -> tuple[int, ...]:
        return prompt_ids(text, self._tokenizer, self._chat_template)

    def _first_ids(self, text: str) -> tuple[int, ...]:
        ids, start = token_ids(text, self._tokenizer), leading_tokens(self._tokenizer)
        return ids if ids[: len(start)] == start else (*start, *ids)

    def _next_ids(self, end: str, text: str) -> tuple[int, ...]:
        """Return the tokens of `text` after a token whose text is `end`.

        Some tokenizers split text differently at its start, or remove spaces after special tokens.
        """
        head, whole = token_ids(end, self._tokenizer), token_ids(end + text, self._tokenizer)
        is_split = end and whole[: len(head)] == head
        return whole[len(head) :] if is_split else token_ids(text, self._tokenizer)

    def _chat_text(self, request: ChatRequest, trajectory: Trajectory) -> str:
        """Return the rendered request.

        Own tool calls that differ from the sampled ones only in their spelling are rendered as
        sampled, because applications and libraries parse and write the arguments again.
        """
        messages = self._messages(request)
        text = self._render(messages, request)
        own = _own_calls(messages, trajectory.turns)
        length = trajectory.recorded_length(text)
        if all(length >= len(turn.text) for turns in own.values() for turn in turns):
            return text
        restored = self._restored(messages, own, request)
        if restored is None or trajectory.recorded_length(restored) <= length:
            return text
        trajectory.note("tool calls restored as sampled")
        return restored

    def _messages(self, request: ChatRequest) -> list[Message]:
        template = self._chat_template or str(self._tokenizer.chat_template or "")
        takes_parts = iterates_content(template)
        return [template_message(each, takes_parts) for each in request.messages]

    def _render(self, messages: Sequence[Message], request: ChatRequest) -> str:
        template, tools = self._chat_template, request.template_tools
        has_template = template or self._tokenizer.chat_template
        if not has_template and not tools and [each["role"] for each in messages] == ["user"]:
            return str(messages[0]["content"])
        variables = request.template_variables
        return render_messages(messages, tools, self._tokenizer, template, variables)

    def _restored(
        self, messages: Sequence[Message], own: Mapping[int, Sequence[Turn]], request: ChatRequest
    ) -> str | None:
        """Return the text with sampled calls, or None if the template does not allow it."""
        marked = [
            {"role": "assistant", "content": _MARK.format(i)} if i in own else message
            for i, message in enumerate(messages)
        ]
        try:
            rest = self._render(marked, request)
        except InvalidValue:
            return None
        text = ""
        for i in own:
            before, mark, rest = rest.partition(_MARK.format(i))
            text += before
            turn = _turn_of(messages[i], [turn for turn in own[i] if turn.prompt.text == text])
            if not mark or turn is None:
                others = {key: turns for key, turns in own.items() if key != i}
                return self._restored(messages, others, request) if others else None
            text += turn.content
        return text + rest


def template_message(message: Mapping[str, Any], takes_parts: bool) -> dict[str, Any]:
    """Return a message as vLLM passes it to a chat template.

    `takes_parts` is whether the template accepts content as a list of parts.
    """
    role, content = message["role"], message.get("content")
    if isinstance(content, list) and not (takes_parts and role != "tool"):
        content = "\n".join(part["text"] for part in content)
    result: dict[str, Any] = {"role": role, "content": "" if content is None else content}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            result["tool_calls"] = [_template_call(call) for call in calls]
        if (reasoning := reasoning_of(message)) is not None:
            result |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    if isinstance(name := message.get("name"), str):
        result["name"] = name
    return result


def reasoning_of(message: Mapping[str, Any]) -> str | None:
    """Return the reasoning of an assistant message; vLLM and OpenAI's clients name it twice."""
    reasoning = message.get("reasoning")
    return message.get("reasoning_content") if reasoning is None else reasoning


@lru_cache(maxsize=4)
def iterates_content(template: str) -> bool:
    """Return whether a template reads content as a list of parts."""
    environment = jinja2.Environment(extensions=[_Generation, jinja2.ext.loopcontrols])
    try:
        tree = environment.parse(template)
    except jinja2.TemplateError:
        return False
    return any(_is_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


class _Generation(jinja2.ext.Extension):
    """The block `{% generation %}` of transformers."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _is_content(node: jinja2.nodes.Node) -> bool:
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    name = getattr(node, "attr", None) or getattr(node, "name", None)
    return name == "content"


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(value: Any) -> dict[str, Any]:
    """Return the arguments of a call, or {} if they are not an object, as in vLLM."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _own_calls(messages: Sequence[Message], turns: Sequence[Turn]) -> dict[int, list[Turn]]:
    """Return the turns that each message with tool calls may have come from."""
    of_meaning: dict[str, list[Turn]] = {}
    for turn in turns:
        if turn.message.get("tool_calls"):
            of_meaning.setdefault(_meaning(turn.message), []).append(turn)
    own = {}
    for i, message in enumerate(messages):
        if message.get("tool_calls") and (matching := of_meaning.get(_meaning(message))):
            own[i] = matching
    return own


def _meaning(message: Message) -> str:
    """Return an assistant message without ids and without the spelling of its arguments."""
    functions = (call["function"] for call in message["tool_calls"])
    calls = [(each["name"], _arguments(each.get("arguments"))) for each in functions]
    content = message.get("content") or ""
    return json.dumps([content, reasoning_of(message) or "", calls], sort_keys=True)


def _turn_of(message: Message, turns: Sequence[Turn]) -> Turn | None:
    """Return the turn with the ids of the message's calls, or else the first in token order."""
    ids = _call_ids(message)
    return min(
        turns, key=lambda turn: (_call_ids(turn.message) != ids, turn.token_ids), default=None
    )


def _call_ids(message: Message) -> list[Any]:
    return [call.get("id") for call in message["tool_calls"]]
