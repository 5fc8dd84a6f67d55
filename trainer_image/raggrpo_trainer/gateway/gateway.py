"""`Gateway`: serves the policy to applications and records their trajectories."""

import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raggrpo_trainer.data.conversation import InvalidValue
from raggrpo_trainer.data.tokenizer import Tokenizer, completion_text
from raggrpo_trainer.engines.generation import Generation, GenerationRequest, InvalidRequest

from .calls import Session
from .forwarding import Forwarder
from .model_names import ModelNames
from .protocol import ChatRequest, CompletionOptions, CompletionRequest, RequestRejected
from .rendering import Renderer
from .responses import Reply
from .server import KEEP_ALIVE_SECONDS, GatewayServer
from .tool_parsing import ParsedReply, ReplyParser, SampledReply, ToolCall
from .trajectory import NOT_PARSED, Prompt, Trajectory, TrajectoryCause, Turn, are_complete
from .working_time import Timer

CALL_ID_CHARACTERS = 9
"""Length of the ids of tool calls; the templates of Mistral accept no other."""
NEUTRAL_SAMPLING = {"top_k": -1, "min_p": 0, "repetition_penalty": 1}
Submit = Callable[[Sequence[GenerationRequest]], Sequence[Awaitable[Generation]]]


@dataclass(frozen=True)
class GatewayOptions:
    """Settings of the gateway."""

    max_model_length: int
    """Tokens of prompt and completion together."""
    max_tokens: int
    """Tokens of a completion; applications may request fewer."""
    max_turns: int
    """Completions of a trajectory."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end a completion."""
    chat_template: str = ""
    """Replaces the tokenizer's chat template unless empty."""
    policy_models: tuple[str, ...] = ("*",)
    """Patterns of model names that mean the policy."""
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS


class Gateway:
    """An OpenAI-compatible server with one trajectory per key.

    All methods must be called on the event loop that `start` was called on.
    """

    def __init__(
        self,
        options: GatewayOptions,
        tokenizer: Tokenizer,
        submit: Submit,
        parser: ReplyParser | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        """`submit` queues requests at the engines. Without `parser`, replies are plain text.

        `forwarder` has the endpoints of models that are not trained.
        """
        self.forwarder = forwarder or Forwarder()
        self.models = ModelNames(options.policy_models, self.forwarder.endpoints)
        self._options = options
        self._tokenizer = tokenizer
        self._submit = submit
        self._parser = parser
        self._renderer = Renderer(tokenizer, options.chat_template, options.max_model_length)
        eos = tokenizer.eos_token_id
        self._end_ids = frozenset([*options.stop_token_ids, *([] if eos is None else [eos])])
        self._sessions: dict[str, Session] = {}
        self._server = GatewayServer(self, options.keep_alive_seconds)

    async def start(self, host: str | None, port: int = 0) -> str:
        """Listen and return the base URL, which ends with `/v1`. Port 0 selects a free port.

        Without a host, listen on all IPv4 and IPv6 addresses; the URL is that of loopback.
        """
        return await self._server.start(host, port)

    def open(
        self,
        key: str,
        seed_key: tuple[int, ...],
        temperature: float,
        top_p: float,
        affinity: int | None = None,
        timer: Timer | None = None,
    ) -> Trajectory:
        """Accept calls with a key and record them until `close`.

        `seed_key` has the run's seed, step, prompt and sample. Trajectories with equal `affinity`
        use the same engine. `timer` bounds calls of models that are not trained.
        """
        trajectory = Trajectory(key, seed_key, temperature, top_p, affinity=affinity)
        self._sessions[key] = Session(trajectory, timer or Timer(math.inf))
        return trajectory

    async def close(self, key: str) -> Trajectory:
        """Return the trajectory and reject further calls; calls in flight receive status 410.

        Raises the error of a call that failed without fault of the application, such as the loss of
        an engine.
        """
        session = self._sessions.pop(key)
        await session.close()
        if session.error is not None:
            raise session.error
        return session.trajectory

    async def stop(self) -> None:
        """Stop the server and drop the open trajectories."""
        for key in list(self._sessions):
            await self._sessions.pop(key).close()
        await self._server.stop()
        await self.forwarder.close()

    def session(self, key: str) -> Session | None:
        """Return the open trajectory with a key."""
        return self._sessions.get(key)

    def token_text(self, token: int) -> str:
        """Return the text of a token."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def written_message(self, request: ChatRequest, message: Mapping[str, Any]) -> str:
        """Return what the template writes after a request if a message follows, or ""."""
        try:
            return self._renderer.written_message(request, dict(message))
        except InvalidValue:
            return ""

    async def complete(self, session: Session, request: CompletionOptions) -> Reply:
        """Return the completion of a request. Raises RequestRejected."""
        try:
            return await self._complete(session.trajectory, request)
        except RequestRejected as rejected:
            session.trajectory.record_failure(rejected.cause, str(rejected))
            raise
        except Exception as error:
            session.error = session.error or error
            raise RequestRejected(410, "generation failed; the trajectory ends") from error

    async def _complete(self, trajectory: Trajectory, request: CompletionOptions) -> Reply:
        self._count_call(trajectory)
        for name in request.ignored(_sampling(trajectory)):
            trajectory.note(f"ignored {name}")
        prompt = self._prompt(request, trajectory)
        if trajectory.turns and prompt.parent is None:
            trajectory.note("new rows")
        generation_request = self._generation_request(prompt, request, trajectory)
        generation = await self._generate(generation_request)
        _require_logprobs(generation)
        content = completion_text(generation.token_ids, self._tokenizer, self._end_ids)
        text = _without_stop(content, request.stop)
        parsed = await self._parse(text, prompt, generation, request)
        if parsed.problem:
            trajectory.note(f"{NOT_PARSED}: {parsed.problem}")
        turn = self._turn(prompt, generation, content, _message(parsed, generation_request.seed))
        if turn.token_ids:
            trajectory.turns.append(turn)
        return Reply(
            f"{generation_request.seed:016x}",
            int(time.time()),
            request,
            turn,
            text,
            _finish_reason(generation, parsed),
        )

    async def _generate(self, request: GenerationRequest) -> Generation:
        [future] = self._submit([request])
        try:
            return await future
        except InvalidRequest as error:
            message = f"the engine rejected the request: {error.reason}"
            raise RequestRejected(400, message, code="invalid_value") from error

    def _count_call(self, trajectory: Trajectory) -> None:
        limit = self._options.max_turns
        if trajectory.num_calls >= limit:
            message = f"the trajectory has {limit} calls, which is the limit (maxTurns)"
            raise RequestRejected(
                400, message, code="max_turns_exceeded", cause=TrajectoryCause.MAX_TURNS
            )
        trajectory.num_calls += 1

    def _prompt(self, request: CompletionOptions, trajectory: Trajectory) -> Prompt:
        try:
            if isinstance(request, CompletionRequest):
                return self._renderer.text_prompt(request.prompt, trajectory)
            assert isinstance(request, ChatRequest)
            return self._renderer.chat_prompt(request, trajectory)
        except (MemoryError, RequestRejected):
            raise
        except InvalidValue as error:
            message = f"the conversation {error}"
            raise RequestRejected(400, message, param="messages", code="invalid_value") from error
        except Exception as error:  # tokenizers raise exceptions of any type
            message = f"the prompt cannot be tokenized: {error}"
            raise RequestRejected(400, message, code="invalid_value") from error

    def _generation_request(
        self, prompt: Prompt, request: CompletionOptions, trajectory: Trajectory
    ) -> GenerationRequest:
        length, limit = len(prompt.ids), self._options.max_model_length
        param = "prompt" if isinstance(request, CompletionRequest) else "messages"
        if length == 0:
            message = "the prompt has no tokens; send text"
            raise RequestRejected(400, message, param=param, code="invalid_value")
        if length >= limit:
            message = (
                f"the model's maximum context length is {limit} tokens, and the prompt has {length}"
            )
            raise RequestRejected(
                400,
                message,
                param=param,
                code="context_length_exceeded",
                cause=TrajectoryCause.CONTEXT_LENGTH,
            )
        own_limit = request.token_limit or self._options.max_tokens
        return GenerationRequest(
            prompt_ids=prompt.ids,
            max_tokens=min(own_limit, self._options.max_tokens, limit - length),
            temperature=trajectory.temperature,
            top_p=trajectory.top_p,
            seed=trajectory.seed(prompt.ids),
            stop_token_ids=self._options.stop_token_ids,
            stop=tuple(request.stop),
            affinity=trajectory.affinity,
        )

    async def _parse(
        self, text: str, prompt: Prompt, generation: Generation, request: CompletionOptions
    ) -> ParsedReply:
        if self._parser is None or not isinstance(request, ChatRequest):
            return ParsedReply(text)
        reply = SampledReply(
            text,
            generation.token_ids,
            prompt.ids,
            request.template_tools if request.may_call_tools else [],
            request.template_variables,
        )
        return await self._parser.parse(reply)

    def _turn(
        self, prompt: Prompt, generation: Generation, content: str, message: dict[str, Any]
    ) -> Turn:
        ids = generation.token_ids
        end = self.token_text(ids[-1]) if ids and ids[-1] in self._end_ids else ""
        version = generation.policy_version
        return Turn(prompt, ids, generation.logprobs, content, end, message, version)


def _sampling(trajectory: Trajectory) -> dict[str, float]:
    own = {"temperature": trajectory.temperature, "top_p": trajectory.top_p}
    return NEUTRAL_SAMPLING | own


def _require_logprobs(generation: Generation) -> None:
    if not are_complete(generation.token_ids, generation.logprobs):
        raise RequestRejected(
            400,
            f"the engine returned {len(generation.logprobs)} logprobs for "
            f"{len(generation.token_ids)} tokens, or logprobs that are not finite",
            cause=TrajectoryCause.MISSING_LOGPROBS,
        )


def _without_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first stop text, which the engine includes."""
    starts = (text.find(each) for each in stop)
    return text[: min((start for start in starts if start >= 0), default=len(text))]


def _message(parsed: ParsedReply, seed: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning"] = parsed.reasoning
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        calls = enumerate(parsed.tool_calls)
        message["tool_calls"] = [_tool_call(call, seed, i) for i, call in calls]
    return message


def _tool_call(call: ToolCall, seed: int, index: int) -> dict[str, Any]:
    own_id = hashlib.sha256(f"{seed}/{index}".encode()).hexdigest()[:CALL_ID_CHARACTERS]
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id or own_id, "type": "function", "function": function}


def _finish_reason(generation: Generation, parsed: ParsedReply) -> str:
    if parsed.tool_calls:
        return "tool_calls"
    return "length" if generation.finish_reason == "length" else "stop"
