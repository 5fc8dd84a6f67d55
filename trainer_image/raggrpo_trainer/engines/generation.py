"""Requests and results of an engine, and their conversion to and from vLLM's types."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class InvalidRequest(Exception):
    """The engine rejected a request; it still works."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to sample one completion."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Strings that end the completion and remain in its text; used for search turns."""
    ignore_eos: bool = False
    affinity: int | None = None
    """Requests with equal numbers go to the same engine, whose cache has their common prefix."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled completion."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Logprobs of the sampled tokens under the sampling distribution (temperature applied)."""
    finish_reason: str
    """Why sampling ended: stop, length or abort."""
    policy_version: int


def sampling_params(request: GenerationRequest) -> Any:
    """Return vLLM's SamplingParams for a request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        logprobs=0,
        stop_token_ids=list(request.stop_token_ids) or None,
        ignore_eos=request.ignore_eos,
        stop=list(request.stop) or None,
        include_stop_str_in_output=bool(request.stop),
        detokenize=bool(request.stop),
        skip_special_tokens=False,  # a stop string may be a special token
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


@contextmanager
def as_invalid_request() -> Iterator[None]:
    """Translate errors by which vLLM rejects a request into InvalidRequest."""
    from vllm.exceptions import VLLMClientError

    try:
        yield
    except (VLLMClientError, ValueError) as error:
        raise InvalidRequest(str(error)) from error


def to_generation(output: Any, version: int) -> Generation:
    """Convert a finished vLLM RequestOutput."""
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    logprobs = tuple(
        step[token].logprob for step, token in zip(completion.logprobs, ids, strict=True)
    )
    return Generation(ids, logprobs, completion.finish_reason or "abort", version)
