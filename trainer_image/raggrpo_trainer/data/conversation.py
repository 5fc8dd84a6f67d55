"""Parse the conversation of a row and render it with a chat template. Reads no files.

A conversation is a list of `{role, content}`, as in verl's parquet and TRL's JSONL, or of
`{from, value}`, as in ShareGPT. It ends with the user's message, which is the question. A string is
a conversation of one user message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raggrpo_api.foreign_files import parse_json
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .message_formats import (
    INVISIBLE,
    SHARE_GPT_ROLES,
    has_message_keys,
    is_message,
    starts_with_message,
    unsupported_format,
)
from .shown_value import short_repr
from .template_time import limited_time

Message = Mapping[str, Any]
"""`role` and `content`, both text, and fields that templates may read, such as `tool_calls`."""


class InvalidValue(Exception):
    """A value does not have the format of its column."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy
        """The remedy, as shown in messages."""


class ChatTokenizer(Protocol):
    """The interface of a Hugging Face tokenizer that renders conversations."""

    chat_template: Any

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tools: Any,
        chat_template: str | None,
        tokenize: bool,
        add_generation_prompt: bool,
        **variables: Any,
    ) -> Any:
        """Return the conversation in the chat format of the model."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """A question and the messages before it."""

    question: str
    earlier: tuple[Message, ...] = ()


def read_conversation(value: object) -> Conversation:
    """Return the conversation in a cell: a string, a list of messages, or such a list as JSON.

    Raises InvalidValue.
    """
    if isinstance(value, str):
        value = parse_messages(value)
    if isinstance(value, str):
        if kind := unsupported_format(value):
            raise InvalidValue(
                f"looks like {kind}",
                "store it as a list of {role, content}; if it is the question, put it into the "
                "content of a message",
            )
        return Conversation(value)
    if not isinstance(value, list):
        raise InvalidValue(f"is {_shown(value)} instead of a string or a list of messages", "")
    if not value:
        raise InvalidValue("has no message", "add the user's message, or drop the row")
    messages = [_message(item, number) for number, item in enumerate(value, 1)]
    last = messages[-1]
    if last["role"] != "user":
        raise InvalidValue(
            f"ends with a message of role {short_repr(last['role'])}, which would be part of the "
            "prompt",
            "end the list with the user's message; set data.columns.answer for the answer",
        )
    return Conversation(last["content"], tuple(messages[:-1]))


def is_conversation(value: object) -> bool:
    """Return whether a value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(is_message(item) for item in value)


def last_content(value: Sequence[object]) -> str:
    """Return the content of the last message, such as TRL's `completion`. Raises InvalidValue."""
    content: str = _message(value[-1], len(value))["content"]
    return content


def parse_messages(text: str) -> object:
    """Return the messages if `text` is a JSON list of messages, as in CSV exports, else `text`.

    Raises InvalidValue if `text` is a list of messages in another notation.
    """
    if not has_message_keys(text):
        return text
    try:
        value = parse_json(text.strip(INVISIBLE))
    except ValueError as error:
        raise InvalidValue(
            f"looks like a list of messages but is not JSON ({error})",
            "store it as a list of {role, content}, or as valid JSON; if it is the question, put "
            "it into the content of a message",
        ) from error
    if isinstance(value, str):  # encoded twice
        return parse_messages(value)
    if is_message(value):
        return [value]
    return value if starts_with_message(value) else text


def read_tools(value: object) -> tuple[Any, ...]:
    """Return function schemas from a list, or from a list as JSON. Raises InvalidValue."""
    if isinstance(value, str):
        if not value.strip():
            return ()
        try:
            value = parse_json(value)
        except ValueError as error:
            raise InvalidValue(f"is not JSON ({error})", "use a JSON list of functions") from error
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise InvalidValue(
            f"is {_shown(value)} instead of a list of functions", "use a JSON list of functions"
        )
    return tuple(_without_nulls(item) for item in value)


def render(
    question: str,
    earlier: Sequence[Message],
    tools: Sequence[Any],
    tokenizer: ChatTokenizer,
    chat_template: str,
) -> str:
    """Return a conversation as text that ends with the generation prompt.

    Uses the tokenizer's template if `chat_template` is empty. Without a template, a question that
    has neither earlier messages nor tools is returned unchanged. Raises InvalidValue.
    """
    if not chat_template and not tokenizer.chat_template and not earlier and not tools:
        return question
    return render_messages(
        [*earlier, {"role": "user", "content": question}], tools, tokenizer, chat_template, {}
    )


def render_messages(
    messages: Sequence[Message],
    tools: Sequence[Any],
    tokenizer: ChatTokenizer,
    chat_template: str,
    variables: Mapping[str, Any],
) -> str:
    """Return messages as text that ends with the generation prompt.

    Uses the tokenizer's template if `chat_template` is empty. `variables` are visible to the
    template. Raises InvalidValue.
    """
    if not chat_template and not tokenizer.chat_template:
        raise InvalidValue(
            "has a system prompt, earlier turns or tools, but the tokenizer has no chat template",
            "set data.chatTemplate, or use the model's instruction-tuned variant",
        )
    try:
        with limited_time():
            text: str = tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                chat_template=chat_template or None,
                tokenize=False,
                add_generation_prompt=True,
                **variables,
            )
    except Exception as error:
        # Templates raise errors of any type, for example if roles do not alternate.
        raise InvalidValue(
            f"is rejected by the chat template ({type(error).__name__}: {error})",
            "change the row, or set data.chatTemplate",
        ) from error
    return text


def invalid_value_error(place: str, error: InvalidValue, default_remedy: str = "") -> TrainerError:
    """Return a TrainerError with place, reason and remedy."""
    message = f"{place} {error}; {error.remedy or default_remedy}"
    return TrainerError(ExitCode.DATA_ERROR, message)


def _message(item: object, number: int) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise InvalidValue(
            f"is a list whose item {number} is {_shown(item)} instead of a string or a message",
            "use a string for the whole prompt, or {role, content} for each message",
        )
    if item.get("role") is None and item.get("from") is not None:
        item = _from_share_gpt(item, number)
    role = item.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidValue(
            f"has no role in message {number}", "write each message as {role, content}"
        )
    if item.get("content") is None and "value" in item:
        item = {**item, "content": item["value"], "value": None}
    return {**_without_nulls(item), "content": _content(item, number)}


def _from_share_gpt(item: Mapping[str, Any], number: int) -> dict[str, Any]:
    sender = item["from"]
    if not isinstance(sender, str) or sender not in SHARE_GPT_ROLES:
        known = ", ".join(SHARE_GPT_ROLES)
        raise InvalidValue(f"is from {_shown(sender)} in message {number}", f"use one of {known}")
    others = {key: value for key, value in item.items() if key != "from"}
    return {**others, "role": SHARE_GPT_ROLES[sender]}


def _content(item: Mapping[str, Any], number: int) -> str:
    content = item.get("content")
    if content is None and item.get("tool_calls"):
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text_part(part, number) for part in content)
    raise InvalidValue(
        f"has {_shown(content)} as content of message {number}", "set the content to a string"
    )


def _text_part(part: object, number: int) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    shown = kind[:40] if isinstance(kind, str) else short_repr(kind)
    raise InvalidValue(
        f"has a content part of type {shown} in message {number}",
        "remove the part; only text is supported",
    )


def _without_nulls(value: Any) -> Any:
    """Return a value without its nulls; parquet stores the missing fields of a struct as null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _shown(value: object) -> str:
    return f"{type(value).__name__} {short_repr(value)}"[:80]
