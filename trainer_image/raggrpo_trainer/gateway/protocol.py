"""Parse and validate requests of OpenAI's API. Pure.

A rejected request is described by the error object of that API, which names the field.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from raggrpo_api.foreign_files import exceeds_json_memory, parse_json

from .trajectory import TrajectoryCause

MAX_STOP_TEXTS = 16
MAX_NAME_CHARACTERS = 64
MAX_VALUE_BYTES = 64 << 20
"""Estimated memory of the values of a request, besides their texts."""
MAX_ITEMS = 10_000
"""Messages, content parts, tool calls and tools of a request together."""
HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""Parameters without an effect on the completion; ignoring them needs no report."""
NEUTRAL: tuple[Any, ...] = (None, 0, False, "", {}, [], {"type": "text"})
"""Values that leave a parameter without an effect."""
RESERVED_VARIABLES = frozenset(
    [
        *("conversation", "messages", "tools", "chat_template", "tokenize", "return_dict"),
        *("add_generation_prompt", "continue_final_message"),
    ]
)
"""Template variables that an application must not set."""


class RequestRejected(Exception):
    """A request that is answered with an error of OpenAI's API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str = "",
        code: str = "",
        cause: TrajectoryCause = TrajectoryCause.REQUEST_REJECTED,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.cause = cause
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the response."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "authentication_error" if self.status == 401 else kind
        error = {"message": str(self), "type": kind}
        return {"error": error | {"param": self.param or None, "code": self.code or None}}


def _text_content(value: Any) -> Any:
    """Return content as text, None or a list of text parts."""
    if isinstance(value, list):
        return [_text_part(part) for part in value]
    if not isinstance(value, str | None):
        raise ValueError("must be text or a list of text parts")
    return value


def _text_part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise ValueError("a content part must be text or an object")
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        shown = str(kind)[:MAX_NAME_CHARACTERS]
        raise ValueError(f"a content part of type {shown} is not supported; send text")
    if not isinstance(part.get(kind), str):
        raise ValueError(f"a content part of type {kind} must have a text in field {kind}")
    return {"type": "text", "text": part[kind]}


def _one_text(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise ValueError("must be one text; send a request for each text")
    return value


def _stop_texts(value: Any) -> Any:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if isinstance(texts, list) and "" in texts:
        raise ValueError("must not contain an empty text")
    return texts


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class _Function(_Model):
    name: str
    arguments: Any = None


class _ToolCall(_Model):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class _ChatMessage(_Model):
    role: Annotated[str, Field(min_length=1)]
    content: Annotated[Any, BeforeValidator(_text_content)] = None
    tool_calls: Annotated[list[_ToolCall] | None, FailFast()] = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _ToolFunction(BaseModel):
    """Fields and their order as in vLLM, because templates write them as JSON."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _ToolFunction


class _StreamOptions(_Model):
    include_usage: bool = False


class CompletionOptions(_Model):
    """The parameters that chat completions and completions have in common."""

    model: str
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[list[str], Field(max_length=MAX_STOP_TEXTS), BeforeValidator(_stop_texts)] = []

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def token_limit(self) -> int | None:
        """The largest number of tokens to sample, or None for the job's limit."""
        return self.max_tokens

    @property
    def has_logprobs(self) -> bool:
        """Whether the response lists tokens with their logprobs."""
        return False

    def ignored(self, sampling: Mapping[str, float]) -> Iterator[str]:
        """Yield the parameters without effect. `sampling` has the job's values of some."""
        for name, value in (self.model_extra or {}).items():
            neutral = (None, sampling[name]) if name in sampling else NEUTRAL
            if name not in HARMLESS and value not in neutral:
                yield name[:MAX_NAME_CHARACTERS]


class CompletionRequest(CompletionOptions):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[str, BeforeValidator(_one_text)]
    logprobs: int | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether the response lists tokens with their logprobs."""
        return self.logprobs is not None


class ChatRequest(CompletionOptions):
    """The body of `POST /v1/chat/completions`."""

    message_models: Annotated[list[_ChatMessage], Field(alias="messages", min_length=1), FailFast()]
    tools: Annotated[list[_Tool] | None, FailFast()] = None
    tool_choice: Any = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: Literal[True] = True
    continue_final_message: Literal[False] = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages as sent, but with text parts as content."""
        return [each.model_dump(exclude_unset=True) for each in self.message_models]

    @property
    def token_limit(self) -> int | None:
        """The largest number of tokens to sample, or None for the job's limit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def has_logprobs(self) -> bool:
        """Whether the response lists tokens with their logprobs."""
        return bool(self.logprobs)

    @cached_property
    def template_tools(self) -> list[dict[str, Any]]:
        """The tools as vLLM passes them to chat templates."""
        return [_template_tool(tool) for tool in self.tools or ()]

    @property
    def may_call_tools(self) -> bool:
        """Whether tool calls in the completion are calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def template_variables(self) -> dict[str, Any]:
        """The variables that the chat template can read, as in vLLM."""
        variables: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            is_enabled = self.reasoning_effort != "none"
            variables = {"reasoning_effort": self.reasoning_effort, "enable_thinking": is_enabled}
        return variables | (self.chat_template_kwargs or {})

    def ignored(self, sampling: Mapping[str, float]) -> Iterator[str]:
        """Yield the parameters without effect: `tool_choice` cannot force a call."""
        yield from super().ignored(sampling)
        if self.tool_choice not in (None, "none", "auto"):  # vLLM would constrain the completion
            yield "tool_choice"


Request = TypeVar("Request", bound=CompletionOptions)


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises RequestRejected."""
    # Models of messages and parts need several times this memory.
    if exceeds_json_memory(body, MAX_VALUE_BYTES):
        raise RequestRejected(413, "the body has too many values")
    try:
        value = parse_json(body)
    except ValueError as error:  # includes text that is not UTF-8
        raise RequestRejected(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestRejected(400, "the body is not a JSON object")
    return value


def parse_request(kind: type[Request], value: Mapping[str, Any]) -> Request:
    """Return the request in a JSON object. Raises RequestRejected."""
    _require_few_items(value)
    try:
        request = kind.model_validate(value)
    except ValidationError as error:
        raise _rejection(error) from error
    if isinstance(request, ChatRequest):
        _require_free_variables(request.chat_template_kwargs or {})
    return request


def _require_few_items(value: Mapping[str, Any]) -> None:
    """Raise RequestRejected before models are built, which need much more memory than JSON."""
    messages, tools = _items(value, "messages"), _items(value, "tools")
    of_messages = (
        _items(message, name)
        for message in messages
        if isinstance(message, dict)
        for name in ("content", "tool_calls")
    )
    number = len(messages) + len(tools) + sum(map(len, of_messages))
    if number > MAX_ITEMS:
        parts = "messages, content parts, tool calls and tools"
        message = f"the request has {number:,} {parts} (limit {MAX_ITEMS:,})"
        raise RequestRejected(400, message, code="invalid_value")


def _items(value: Mapping[str, Any], name: str) -> list[Any]:
    items = value.get(name)
    return items if isinstance(items, list) else []


def _rejection(error: ValidationError) -> RequestRejected:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _path(problem["loc"])
    reason = problem["msg"].removeprefix("Value error, ")
    reason = "must be an object" if problem["type"] == "model_type" else reason
    message = f"{param}: {reason}"
    if problem["loc"] == ("n",):
        message = "n must be 1: the samples of a group are separate trajectories"
    return RequestRejected(400, message, param=param, code="invalid_value")


def _path(location: Sequence[int | str]) -> str:
    """Return a field as `messages[0].content`."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location)
    return text.removeprefix(".")


def _require_free_variables(variables: Mapping[str, Any]) -> None:
    for name in sorted(RESERVED_VARIABLES & variables.keys()):
        param = f"chat_template_kwargs.{name}"
        raise RequestRejected(400, f"{param} cannot be set", param=param, code="invalid_value")


def _template_tool(tool: _Tool) -> dict[str, Any]:
    function = tool.function.model_dump()
    if function["strict"] is None:
        del function["strict"]
    return {"type": tool.type, "function": function}
