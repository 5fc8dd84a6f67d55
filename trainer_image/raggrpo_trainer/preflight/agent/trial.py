"""Runs of an application against a scripted policy, each with a new gateway and process."""

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from raggrpo_api.spec.agent import AgentSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.gateway.tool_parsing import ReplyParser
from raggrpo_trainer.gateway.trajectory import Trajectory
from raggrpo_trainer.gateway.working_time import Timer, within
from raggrpo_trainer.rollout.agents.agent_request import agent_request
from raggrpo_trainer.rollout.agents.agent_result import AgentResult, parse_result
from raggrpo_trainer.rollout.agents.run_failure import run_failure
from raggrpo_trainer.rollout.agents.runner import AgentRunner
from raggrpo_trainer.sample_failures import SampleFailed

from .outage import Outage
from .scripted_policy import ScriptedGateway

LOOPBACK = "127.0.0.1"
MESSAGE_ID = "preflight"


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a run."""

    trajectory: Trajectory
    failure: SampleFailed | None
    result: AgentResult | None
    tools: Sequence[str]
    """Names of the tools in the application's requests, sorted."""
    unread_call: str
    """A tool call that the parser did not find in the text of the chat template, or ""."""

    @property
    def prompts(self) -> Sequence[str]:
        """The rendered prompts of all calls."""
        return [turn.prompt.text for turn in self.trajectory.turns]

    @property
    def num_new_rows(self) -> int:
        """The number of calls after the first that do not continue a row."""
        return sum(turn.prompt.parent is None for turn in self.trajectory.turns[1:])


@dataclass(frozen=True, slots=True)
class Trials:
    """Runs the application for one row."""

    agent: AgentSpec
    row: Prompt
    outage: Outage
    make_gateway: Callable[[ReplyParser | None, bool], ScriptedGateway]
    """Returns a gateway with a parser, whose policy calls tools or not."""
    make_runner: Callable[[str], AgentRunner]
    """Returns a runner for the base URL of a gateway."""

    async def run(self, parser: ReplyParser | None = None, *, calls_tools: bool = False) -> Trial:
        """Run the application once.

        Raises TrainerError if it cannot be imported, ServiceDown, and ParserUnavailable.
        """
        gateway = self.make_gateway(parser, calls_tools)
        runner = self.make_runner(await gateway.start(LOOPBACK))
        try:
            return await self.outage.ending(self._trial(gateway, runner))
        finally:
            await runner.close()
            await gateway.stop()

    async def _trial(self, gateway: ScriptedGateway, runner: AgentRunner) -> Trial:
        error: CallFailed | None = None
        result: AgentResult | None = None
        try:
            async with runner.slot() as slot:
                timer = Timer(self.agent.timeout_seconds, time.monotonic)
                trajectory = gateway.open(slot.key, (0,), 0.0, 1.0, timer=timer)
                try:
                    request = agent_request(self.agent, self.row, MESSAGE_ID, slot)
                    value = await _value(self.agent.timeout_seconds, slot.run(request))
                finally:
                    await gateway.close(slot.key)
            result = parse_result(value, self.agent)
        except CallFailed as failed:
            error = failed
        failure = run_failure(trajectory, error)
        return Trial(trajectory, failure, result, sorted(gateway.tools), gateway.unread_call)


async def _value(seconds: float, run: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await within(seconds, time.monotonic, run)
    except TimeoutError as error:
        detail = f"no result within {seconds:g} s (rollout.agent.timeoutSeconds)"
        raise CallFailed(FailureCause.TIMEOUT, detail) from error
