"""Start and stop the parser process, the gateway and the application of an agent."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

from raggrpo_api.names import ENV_GATEWAY_URL
from raggrpo_api.spec.agent import AgentSpec, AgentType, Identification
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.data.tokenizer import Tokenizer, end_token_ids, load_tokenizer
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from raggrpo_trainer.gateway.tool_parsing import ParserProcess, ParserUnavailable
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.agents.agent_collector import AgentCollector
from raggrpo_trainer.rollout.agents.http_agent import HttpAgent
from raggrpo_trainer.rollout.agents.python_agent import PythonAgent, num_processes
from raggrpo_trainer.rollout.agents.runner import AgentRunner
from raggrpo_trainer.rollout.agents.tool_parsers import default_tool_parser
from raggrpo_trainer.rollout.agents.trajectory_log import TrajectoryLog

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def reply_parser(
    config: TrainerConfig,
) -> AsyncIterator["asyncio.Task[ParserProcess | None]"]:
    """Start the process that parses replies, without waiting for it; stop it at the end.

    The task's result is None if the job has no agent or its model has no parser. It raises
    TrainerError CONFIG_ERROR if vLLM does not have the parser.
    """
    started: list[ParserProcess] = []
    task = asyncio.create_task(_start_parser(config, started))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        for parser in started:
            await parser.close()


async def _start_parser(
    config: TrainerConfig, started: list[ParserProcess]
) -> ParserProcess | None:
    agent = config.rollout.agent
    if agent is None:
        return None
    tool_parser = agent.tool_parser or await asyncio.to_thread(_default_tool_parser, config)
    if not tool_parser and not agent.reasoning_parser:
        return None
    parser = ParserProcess(config.model.path, tool_parser, agent.reasoning_parser)
    started.append(parser)
    try:
        await parser.start()
    except ParserUnavailable as error:
        message = f"spec.rollout.agent.toolParser: parser {tool_parser or 'none'}: {error}"
        raise TrainerError(ExitCode.CONFIG_ERROR, message) from error
    return parser


def _default_tool_parser(config: TrainerConfig) -> str:
    template = config.data.chat_template or load_tokenizer(config.model.path).chat_template
    return default_tool_parser(template if isinstance(template, str) else "")


@asynccontextmanager
async def agent_collector(
    config: TrainerConfig,
    tokenizer: Tokenizer,
    pool: EnginePool,
    parser: ParserProcess | None,
    rewards: Rewards,
    folder: Path,
    outages: Outages,
) -> AsyncIterator[AgentCollector]:
    """Yield the collector of an agent; stop its gateway and its processes at the end.

    `folder` is the folder of the attempt's logs.
    """
    agent = config.rollout.agent
    assert agent is not None
    options = GatewayOptions(
        max_model_length=config.data.max_sequence_length,
        max_tokens=config.data.max_response_length,
        max_turns=agent.max_turns,
        stop_token_ids=tuple(sorted(end_token_ids(tokenizer, Path(config.model.path)))),
        chat_template=config.data.chat_template,
        policy_models=tuple(agent.policy_models),
    )
    gateway = Gateway(options, tokenizer, pool.submit, parser)
    base_url = await _start_gateway(gateway, agent)
    runner = _runner(config, agent, base_url, outages)
    try:
        log = TrajectoryLog(folder)
        yield AgentCollector(
            config,
            gateway,
            runner,
            rewards,
            log,
            outages.working_time,
            pool.replacing,
        )
    finally:
        await runner.close()
        await gateway.stop()


async def _start_gateway(gateway: Gateway, agent: AgentSpec) -> str:
    """Start the gateway and return its URL as the application reaches it."""
    url = os.environ.get(ENV_GATEWAY_URL, "") if agent.is_service else ""
    if not url:
        return await gateway.start(LOOPBACK)
    address = urlsplit(url)
    is_local = address.hostname == LOOPBACK
    await gateway.start(LOOPBACK if is_local else None, address.port or 0)
    return url


def _runner(
    config: TrainerConfig, agent: AgentSpec, base_url: str, outages: Outages
) -> AgentRunner:
    match agent.type:
        case AgentType.PYTHON:
            processes, code = num_processes(agent.processes), config.reward.code_from.path
            return PythonAgent(agent.python, base_url, processes, code, agent.interpreter)
        case AgentType.HTTP | AgentType.CONTAINER:
            by_trace = agent.identify is Identification.TRACE
            return HttpAgent(agent.url, base_url, outages, sends_trace=by_trace)
        case _:
            assert_never(agent.type)
