"""Parse sampled text into reasoning, content and tool calls, in a process that may import torch."""

import asyncio
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from raggrpo_trainer.child_process import ProcessExited, kill, receive, send, start_module
from raggrpo_trainer.http.background_tasks import BackgroundTasks

PARSE_SECONDS = 30.0
"""Time limit of one reply; a regular expression of a parser may never end."""
START_SECONDS = 300.0
"""Time limit of importing vLLM."""
MAX_TRIES = 2
"""Number of times that a reply is parsed if its parser exits."""
MAX_LINE_BYTES = 64 << 20


class ParserUnavailable(Exception):
    """The parser process cannot start, for example because vLLM has no parser of that name."""


@dataclass(frozen=True, slots=True)
class SampledReply:
    """A completion of a chat and the fields of its request that parsers read."""

    text: str
    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    tools: Sequence[Mapping[str, Any]]
    """Empty if the reply must not call tools."""
    template_variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function."""

    name: str
    arguments: str
    """JSON, unless the model wrote something else."""
    id: str = ""
    """The id that the model wrote, or empty."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The parts of a reply."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    problem: str = ""
    """Why the text, or a call in it, could not be parsed; `content` then has that text."""


class ReplyParser(Protocol):
    """Parses replies. A parser has no state: equal replies have equal results."""

    async def parse(self, reply: SampledReply) -> ParsedReply:
        """Return the parts of a reply."""
        ...


@dataclass(slots=True)
class ParserProcess:
    """A `ReplyParser` in a child process, which is replaced if it exits or hangs."""

    model_path: str
    tool_parser: str = ""
    """Name of vLLM's tool parser; empty for none."""
    reasoning_parser: str = ""
    """Name of vLLM's reasoning parser; empty for none."""
    module: str = "raggrpo_trainer.gateway.parser_process"
    parse_seconds: float = PARSE_SECONDS
    _process: Process | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def start(self) -> None:
        """Start the process and wait until it parses. Raises ParserUnavailable."""
        async with self._lock:
            await self._running()

    async def parse(self, reply: SampledReply) -> ParsedReply:
        """Return the parts of a reply, or its whole text if no process can parse it.

        Raises ParserUnavailable if the process cannot start.
        """
        # A canceled caller must not leave its result in the pipe.
        return await asyncio.shield(self._tasks.start(self._parse(reply)))

    async def close(self) -> None:
        """Kill the process; calls in flight are canceled."""
        await self._tasks.close()
        await self._kill()

    async def _parse(self, reply: SampledReply) -> ParsedReply:
        problem = ""
        for _ in range(MAX_TRIES):
            async with self._lock:
                try:
                    return _parsed(await self._call(reply), reply)
                except TimeoutError:
                    return ParsedReply(reply.text, problem="the parser timed out")
                except (ProcessExited, ValueError) as error:
                    problem = f"the parser failed: {error}"
        return ParsedReply(reply.text, problem=problem)

    async def _call(self, reply: SampledReply) -> dict[str, Any]:
        process = await self._running()
        try:
            async with asyncio.timeout(self.parse_seconds):
                await send(process, asdict(reply))
                outcome: dict[str, Any] = await receive(process)
        except BaseException:  # the process must not answer the next call with this result
            await self._kill()
            raise
        return outcome

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = await start_module(
            self.module,
            *(self.model_path, self.tool_parser, self.reasoning_parser),
            stderr=DEVNULL,  # vLLM logs a traceback for each malformed call
            max_line_bytes=MAX_LINE_BYTES,
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                started = await receive(self._process)
        except (TimeoutError, ProcessExited) as error:
            await self._kill()
            raise ParserUnavailable(f"the parser process does not start: {error}") from error
        if "problem" in started:
            await self._kill()
            raise ParserUnavailable(started["problem"])
        return self._process

    async def _kill(self) -> None:
        if self._process is not None:
            await kill(self._process)
        self._process = None


def _parsed(outcome: Mapping[str, Any], reply: SampledReply) -> ParsedReply:
    problem = outcome["problem"]
    if "content" not in outcome:
        return ParsedReply(reply.text, problem=problem)
    calls = tuple(ToolCall(**call) for call in outcome["tool_calls"])
    return ParsedReply(outcome["content"], outcome["reasoning"], calls, problem)
