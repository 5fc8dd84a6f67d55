"""Responses of OpenAI's API: objects, streamed frames, usage and logprobs. Pure."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .protocol import ChatRequest, CompletionOptions
from .trajectory import Turn

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE_FRAME = b": waiting\n\n"
"""A comment, which clients skip."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A completed call."""

    id: str
    created: int
    """Seconds since 1970."""
    request: CompletionOptions
    turn: Turn
    text: str
    """The text of a completion, without the stop text."""
    finish_reason: str

    def body(self, token_text: Callable[[int], str]) -> dict[str, Any]:
        """Return the response that is not streamed."""
        if isinstance(self.request, ChatRequest):
            choice = {"index": 0, "message": dict(self.turn.message)}
        else:
            choice = {"index": 0, "text": self.text}
        end = {"logprobs": self._logprobs(token_text), "finish_reason": self.finish_reason}
        return self._object([choice | end]) | {"usage": self._usage()}

    def json(self, token_text: Callable[[int], str]) -> bytes:
        """Return the body as JSON."""
        return json.dumps(self.body(token_text)).encode()

    def frames(self, token_text: Callable[[int], str]) -> Iterator[bytes]:
        """Yield the finished completion in the form of a stream."""
        for choice in self._streamed_choices(token_text):
            yield event(self._object([choice], ".chunk"))
        if self.request.include_usage:
            yield event(self._object([], ".chunk") | {"usage": self._usage()})
        yield DONE

    def _streamed_choices(self, token_text: Callable[[int], str]) -> list[dict[str, Any]]:
        logprobs = self._logprobs(token_text)
        end = {"index": 0, "logprobs": None, "finish_reason": self.finish_reason}
        if not isinstance(self.request, ChatRequest):
            return [end | {"text": self.text, "logprobs": logprobs}]
        start = {"index": 0, "logprobs": logprobs, "finish_reason": None}
        return [start | {"delta": _delta(self.turn.message)}, end | {"delta": {}}]

    def _object(self, choices: list[dict[str, Any]], suffix: str = "") -> dict[str, Any]:
        is_chat = isinstance(self.request, ChatRequest)
        return {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{self.id}",
            "object": f"chat.completion{suffix}" if is_chat else "text_completion",
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        prompt, completion = len(self.turn.prompt.ids), len(self.turn.token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _logprobs(self, token_text: Callable[[int], str]) -> dict[str, Any] | None:
        if not self.request.has_logprobs:
            return None
        texts = [token_text(token) for token in self.turn.token_ids]
        logprobs = list(self.turn.logprobs)
        if not isinstance(self.request, ChatRequest):
            return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None}
        tokens = zip(texts, logprobs, strict=True)
        return {"content": [_token(text, logprob) for text, logprob in tokens], "refusal": None}


def event(value: Mapping[str, Any]) -> bytes:
    """Return a frame of a stream."""
    return f"data: {json.dumps(value)}\n\n".encode()


def model_list(names: list[str]) -> dict[str, Any]:
    """Return the response of `GET /v1/models`."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    """Return the description of a model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "raggrpo"}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as the only delta of a stream."""
    delta = dict(message)
    if calls := message.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
    return delta


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
