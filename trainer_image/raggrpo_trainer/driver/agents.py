"""Start and stop the parser process, the gateway and the application of an agent."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

from raggrpo_api.names import ENV_GATEWAY_URL
from raggrpo_api.spec.agent import AgentSpec, AgentType, Identification
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.data.tokenizer import Tokenizer, load_tokenizer
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.gateway import Gateway
from raggrpo_trainer.gateway.tool_parsing import ParserProcess, ParserUnavailable
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.agents.agent_collector import AgentCollector
from raggrpo_trainer.rollout.agents.forwarded_models import forwarded_endpoints
from raggrpo_trainer.rollout.agents.gateway_options import gateway_options, tool_parser_name
from raggrpo_trainer.rollout.agents.http_agent import HttpAgent
from raggrpo_trainer.rollout.agents.python_agent import PythonAgent
from raggrpo_trainer.rollout.agents.runner import AgentRunner
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
    tokenizer = await asyncio.to_thread(load_tokenizer, config.model.path)
    tool_parser = tool_parser_name(config, agent, tokenizer)
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


@asynccontextmanager
async def agent_collector(
    config: TrainerConfig,
    tokenizer: Tokenizer,
    pool: EnginePool,
    parser: ParserProcess | None,
    rewards: Rewards,
    folder: Path,
    outages: Outages,
    env: Mapping[str, str],
) -> AsyncIterator[AgentCollector]:
    """Yield the collector of an agent; stop its gateway and its processes at the end.

    `folder` is the folder of the attempt's logs, `env` has the API keys of forwarded models.
    """
    agent = config.rollout.agent
    assert agent is not None
    options = gateway_options(config, agent, tokenizer)
    forwarder = Forwarder(forwarded_endpoints(agent, env), outages)
    gateway = Gateway(options, tokenizer, pool.submit, parser, forwarder)
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
            code = config.reward.code_from.path
            return PythonAgent(agent.python, base_url, agent.processes, code, agent.interpreter)
        case AgentType.HTTP | AgentType.CONTAINER:
            by_trace = agent.identify is Identification.TRACE
            return HttpAgent(
                agent.url,
                base_url,
                outages,
                sends_trace=by_trace,
                concurrency=config.world.num_engines * config.rollout.max_num_seqs,
            )
        case _:
            assert_never(agent.type)
