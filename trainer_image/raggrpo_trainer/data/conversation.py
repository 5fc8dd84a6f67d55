"""A row's conversation: read from its column, rendered with a chat template. Reads no files.

The conversation is a list of `{role, content}`, as verl's parquet and TRL's JSONL have it; it ends
with the user's message, which is the question. A text is a conversation of this one message.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

_LIKE_MESSAGES = re.compile(r"""\s*\[\s*\{\s*['"](role|content)['"]\s*:""")
Message = Mapping[str, Any]
"""`role` and `content`, both text, besides what a template may read, such as `tool_calls`."""


class InvalidValue(Exception):
    """A value has not the form of its column; the message says why, `remedy` what to do."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that renders conversations."""

    chat_template: Any

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tools: Any,
        chat_template: str | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> Any:
        """Return the conversation in the chat format the model was trained on."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """A question and what was said before it."""

    question: str
    earlier: tuple[Message, ...] = ()


def read_conversation(value: object) -> Conversation:
    """Return the conversation in a cell: a text or a list of messages, also as JSON text.

    Raises DoesNotFit.
    """
    if isinstance(value, str):
        value = _messages_in(value)
    if isinstance(value, str):
        return Conversation(value)
    if not isinstance(value, list):
        raise InvalidValue(f"is {_shown(value)} instead of a string or a list of messages", "")
    if not value:
        raise InvalidValue("has no message", "give it the user's message, or drop the row")
    messages = [_message(item, number) for number, item in enumerate(value, 1)]
    last = messages[-1]
    if last["role"] != "user":
        raise InvalidValue(
            f"ends with a message of role {last['role']!r}, which would be part of the prompt",
            "end it with the user's message; an answer belongs into data.columns.answer",
        )
    return Conversation(last["content"], tuple(messages[:-1]))


def is_conversation(value: object) -> bool:
    """Return whether a value is a list of messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and "role" in item for item in value)
    )


def last_content(value: object) -> str:
    """Return the text of the last message, such as of TRL's `completion`. Raises DoesNotFit."""
    assert isinstance(value, list)
    content: str = _message(value[-1], len(value))["content"]
    return content


def read_tools(value: object) -> tuple[Any, ...]:
    """Return function schemas given as a list or as its JSON text. Raises DoesNotFit."""
    if isinstance(value, str):
        if not value.strip():
            return ()
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidValue(f"is not JSON ({error})", "give a JSON list of functions") from error
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise InvalidValue(f"is {_shown(value)}", "give a JSON list of functions")
    return tuple(_without_nulls(item) for item in value)


def render(
    question: str,
    earlier: Sequence[Message],
    tools: Sequence[Any],
    tokenizer: ChatTokenizer,
    chat_template: str,
) -> str:
    """Return the text of a conversation, ready for the policy's answer.

    Uses `chat_template`, else the tokenizer's own; without either only a question alone has a text:
    its own. Raises DoesNotFit.
    """
    if not chat_template and not tokenizer.chat_template:
        if earlier or tools:
            raise InvalidValue(
                "has a system prompt, earlier turns or tools, and the tokenizer no chat template",
                "give one in data.chatTemplate, or use the model's instruction-tuned variant",
            )
        return question
    try:
        render_prompt: str = tokenizer.apply_chat_template(
            [*earlier, {"role": "user", "content": question}],
            tools=list(tools) or None,
            chat_template=chat_template or None,
            tokenize=False,
            add_generation_prompt=True,
        )
    except Exception as error:
        # Templates refuse in their own words, such as that roles must alternate, or fail as code.
        raise InvalidValue(
            f"is refused by the chat template ({type(error).__name__}: {error})",
            "change the row, or give a template of your own in data.chatTemplate",
        ) from error
    return render_prompt


def invalid_value_error(place: str, error: InvalidValue, otherwise: str = "") -> TrainerError:
    """Return the error that names the place, why it does not fit, and what to do."""
    message = f"{place} {error}; {error.remedy or otherwise}"
    return TrainerError(ExitCode.DATA_ERROR, message)


def _messages_in(text: str) -> object:
    """Return the messages that a text holds as JSON, as CSV exports write them; else the text."""
    if not _LIKE_MESSAGES.match(text):
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidValue(
            f"looks like a list of messages and is not JSON ({error})",
            "write it as a list of {role, content}, or as JSON",
        ) from error
    return value if is_conversation(value) else text


def _message(item: object, number: int) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise InvalidValue(
            f"is a list whose item {number} is {_shown(item)} instead of a string or a message",
            "write a text, or {role, content} for every message",
        )
    role = item.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidValue(f"has no role in message {number}", "write {role, content}")
    return {**_without_nulls(item), "content": _content(item, number)}


def _content(item: Mapping[str, Any], number: int) -> str:
    content = item.get("content")
    if content is None and item.get("tool_calls"):
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text_part(part, number) for part in content)
    raise InvalidValue(f"has {_shown(content)} as content of message {number}", "give it a text")


def _text_part(part: object, number: int) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InvalidValue(
        f"has a part of type {kind} in message {number}", "only text can be trained on: drop it"
    )


def _without_nulls(value: Any) -> Any:
    """Return a value without nulls, which parquet writes where other rows have a field."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
