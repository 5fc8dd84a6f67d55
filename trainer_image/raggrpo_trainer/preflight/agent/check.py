"""Check AgentReady: the application runs, calls the policy and returns what the job reads."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, assert_never

from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.spec.agent import AgentSpec, AgentType, Identification
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.tokenizer import Tokenizer, load_tokenizer, token_ids
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.gateway import GatewayOptions
from raggrpo_trainer.gateway.tool_parsing import ParserProcess, ParserUnavailable, ReplyParser
from raggrpo_trainer.preflight.finding import Finding, finding_for, not_evaluated
from raggrpo_trainer.preflight.first_row import answered_sample, read_first_row
from raggrpo_trainer.rollout.agents.forwarded_models import forwarded_endpoints
from raggrpo_trainer.rollout.agents.gateway_options import gateway_options, tool_parser_name
from raggrpo_trainer.rollout.agents.http_agent import HttpAgent
from raggrpo_trainer.rollout.agents.python_agent import PythonAgent
from raggrpo_trainer.rollout.agents.runner import AgentRunner
from raggrpo_trainer.sample_failures import SampleFailed

from .outage import Outage, ServiceDown
from .repetition import dates, difference
from .scripted_policy import ScriptedGateway
from .template_rows import template_rows
from .trial import Trial, Trials

IN_POD = "KUBERNETES_SERVICE_HOST"
"""Variable of processes in pods, whose gateway a service cannot reach before the attempt."""
REMEDIES: Final = {
    FailureCause.NO_MODEL_CALL: "pass no other base URL or API key to its client",
    FailureCause.TIMEOUT: "increase it, or make the application faster",
    FailureCause.MAX_TURNS: "increase rollout.agent.maxTurns",
    FailureCause.CONTEXT_LENGTH: "increase data.maxPromptLength",
    FailureCause.FORWARD_FAILED: "check url, models and apiKeySecret",
    FailureCause.FORWARD_TIMEOUT: "check that the endpoint answers, or increase "
    "rollout.agent.timeoutSeconds",
}
REMEDY: Final = "correct the application; it is checked with the first row of the data"
PARSER_REMEDY: Final = "set rollout.agent.toolParser to one of vLLM's parsers that fits the model"
PARSERS_REMEDY: Final = "set both to parsers of vLLM that fit the model, or omit them"
STARTS_LATER: Final = (
    "the container starts after preflight, so the first step is the first run of the application"
)
_OF_REPLIES: Final = (FailureCause.RAISED, FailureCause.MAX_TURNS)
"""Failures that the text of a scripted reply may have caused."""


@dataclass
class _Report:
    """What the check found."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def check_agent(config: TrainerConfig, agent: AgentSpec, env: Mapping[str, str]) -> Finding:
    """Run the application two or three times for the first row, with a scripted policy."""
    try:
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model.path)
    except Exception:  # loading raises errors of any type; check ModelReadable reports them
        return not_evaluated(CheckId.AGENT_READY, "requires the tokenizer")
    row = await asyncio.to_thread(read_first_row, config)
    if row is None:
        return not_evaluated(CheckId.AGENT_READY, "requires readable data")
    report = _Report()
    code = ExitCode.AGENT_ERROR
    name = tool_parser_name(config, agent, tokenizer)
    parser = ParserProcess(config.model.path, name, agent.reasoning_parser)
    try:
        if agent.tool_parser or agent.reasoning_parser:
            await parser.start()
        if agent.type is AgentType.CONTAINER:
            return not_evaluated(CheckId.AGENT_READY, STARTS_LATER)
        if _is_reachable_only(agent, env):
            await _check_reachable(agent, report)
        else:
            trials = _trials(config, agent, tokenizer, row, env)
            await _run_trials(trials, parser, report, row, tokenizer)
            await _add_template(gateway_options(config, agent, tokenizer), tokenizer, report)
    except ServiceDown as error:
        code = ExitCode.RETRIEVAL_UNAVAILABLE
        report.problems.append(f"{_place(agent)}: {error}; check that the service is running")
    except ParserUnavailable as error:
        names = ", ".join(filter(None, [name, agent.reasoning_parser]))
        place = f"rollout.agent.toolParser, reasoningParser ({names})"
        remedy = PARSERS_REMEDY if agent.reasoning_parser else PARSER_REMEDY
        report.problems.append(f"{place}: {error}; {remedy}")
    except TrainerError as error:
        code = ExitCode(error.exit_code)
        report.problems.append(f"{_place(agent)}: {error}")
    finally:
        await parser.close()
    text = "; ".join([*report.warnings, *report.notes])
    is_unusual = bool(report.warnings)
    return finding_for(CheckId.AGENT_READY, report.problems, text, code, is_unusual=is_unusual)


def _is_reachable_only(agent: AgentSpec, env: Mapping[str, str]) -> bool:
    """Return whether the application cannot call the gateway of the check."""
    return agent.type is AgentType.HTTP and (
        agent.identify is not Identification.REQUEST or IN_POD in env
    )


async def _check_reachable(agent: AgentSpec, report: _Report) -> None:
    service = HttpAgent(agent.url, "", Outage(), sends_trace=False)
    try:
        if not await service.is_up():
            raise ServiceDown(f"no response from {display_url(agent.url)}")
    finally:
        await service.close()
    report.notes.append(f"{display_url(agent.url)} responds; it is called in the attempt only")


def _trials(
    config: TrainerConfig,
    agent: AgentSpec,
    tokenizer: Tokenizer,
    row: Prompt,
    env: Mapping[str, str],
) -> Trials:
    outage, options = Outage(), gateway_options(config, agent, tokenizer)
    endpoints, answer = forwarded_endpoints(agent, env), answered_sample(row).completion

    def make_gateway(parser: ReplyParser | None, calls_tools: bool) -> ScriptedGateway:
        forwarder = Forwarder(endpoints, outage)
        return ScriptedGateway(
            options, tokenizer, answer, parser, forwarder, calls_tools=calls_tools
        )

    def make_runner(base_url: str) -> AgentRunner:
        match agent.type:
            case AgentType.PYTHON:
                code = config.reward.code_from.path
                return PythonAgent(agent.python, base_url, 1, code, agent.interpreter)
            case AgentType.HTTP | AgentType.CONTAINER:
                return HttpAgent(agent.url, base_url, outage, sends_trace=False)
            case _:
                assert_never(agent.type)

    return Trials(agent, row, outage, make_gateway, make_runner)


async def _run_trials(
    trials: Trials, parser: ParserProcess, report: _Report, row: Prompt, tokenizer: Tokenizer
) -> None:
    """Run the application with plain replies, and with a tool call if it sends tools."""
    first = await trials.run()
    if first.failure is not None:
        return _add_failure(trials.agent, first, first.failure, report)
    used, calls_tools = first, False
    if first.tools and await _has_parser(parser, first, report):
        calling = await trials.run(parser, calls_tools=True)
        if calling.unread_call:
            report.problems.append(
                f"rollout.agent.toolParser ({parser.tool_parser}) finds no call in "
                f"{calling.unread_call!r}, as the chat template writes calls; {PARSER_REMEDY}"
            )
        elif calling.failure is not None:
            report.warnings.append(
                f"after a call of tool {first.tools[0]} with other arguments than its model would "
                f"write, the application failed: {calling.failure}"
            )
        else:
            used, calls_tools = calling, True
    repeated = await trials.run(parser if calls_tools else None, calls_tools=calls_tools)
    _add_outcome(trials.agent, used, report)
    _add_repetition(used, repeated, report, row)
    _add_round_trip(used, report, tokenizer)
    return None


async def _has_parser(parser: ParserProcess, trial: Trial, report: _Report) -> bool:
    """Start the parser; add a problem if there is none. Raises ParserUnavailable."""
    if not parser.tool_parser:
        report.problems.append(
            f"the application sends tools ({', '.join(trial.tools)}), but no parser of tool calls "
            f"is known for the chat template; {PARSER_REMEDY}"
        )
        return False
    await parser.start()
    return True


def _add_failure(agent: AgentSpec, trial: Trial, failure: SampleFailed, report: _Report) -> None:
    problem = f"{_place(agent)}: {failure.cause}: {failure.detail}"
    problem += f"; {REMEDIES.get(failure.cause, REMEDY)}"
    if failure.cause in _OF_REPLIES and trial.trajectory.turns:
        report.warnings.append(f"with a scripted reply, {problem}")
    else:
        report.problems.append(problem)


def _add_outcome(agent: AgentSpec, trial: Trial, report: _Report) -> None:
    trajectory, result = trial.trajectory, trial.result
    assert result is not None
    num_calls, num_rows = len(trajectory.turns), len(trajectory.rows())
    report.notes.append(f"calls of the scripted policy: {num_calls}, rows: {num_rows}")
    if trial.num_new_rows * 2 > num_calls - 1:
        report.warnings.append(
            f"{trial.num_new_rows} of {num_calls - 1} later calls start a new row instead of "
            "continuing one, and their tokens are processed again: send the earlier messages "
            "unchanged, or use a chat template that keeps them"
        )
    if agent.passages and not result.passages:
        report.warnings.append(
            f"the result has no passages at {agent.passages} (rollout.agent.passages)"
        )
    ignored = [note for note in trajectory.notes if note.startswith("ignored ")]
    report.notes += [f"{', '.join(ignored)}: the job sets them"] if ignored else []
    if trajectory.untrained_calls:
        report.notes.append(f"forwarded calls of {', '.join(trajectory.untrained_calls)}")


def _add_repetition(trial: Trial, repeated: Trial, report: _Report, row: Prompt) -> None:
    """Add what an interrupted step would not repeat."""
    remedy = "a step that is repeated after a restart would differ; make the requests repeatable"
    if differing := difference(trial.prompts, repeated.prompts):
        report.warnings.append(f"two runs sent different requests ({differing}): {remedy}")
        return
    report.notes.append("a second run sent the same requests")
    now = datetime.now().astimezone()
    data = f"{row.text} {row.query} {row.context} {row.columns} {row.earlier}"
    for day in {now.date(), now.astimezone(UTC).date()}:
        for form in dates(trial.prompts, day, data):
            report.warnings.append(f"the prompts contain the date of today ({form}): {remedy}")
            return


def _add_round_trip(trial: Trial, report: _Report, tokenizer: Tokenizer) -> None:
    """Warn if decoding the tokens of a prompt returns another text."""
    for text in trial.prompts:
        decoded = tokenizer.decode(list(token_ids(text, tokenizer)), skip_special_tokens=False)
        if differing := difference([text.strip()], [decoded.strip()]):
            report.warnings.append(
                f"the tokenizer does not return the text of a prompt ({differing}): its replies "
                "may differ from their tokens; check clean_up_tokenization_spaces"
            )
            return


async def _add_template(options: GatewayOptions, tokenizer: Tokenizer, report: _Report) -> None:
    effects = await template_rows(options, tokenizer)
    text = ", ".join(f"{kind} {effect}" for kind, effect in effects.items())
    report.notes.append(f"with this chat template, {text}")


def _place(agent: AgentSpec) -> str:
    """Return the field of the application with its value."""
    if agent.type is AgentType.PYTHON:
        return f"rollout.agent.python ({agent.python})"
    return f"rollout.agent.url ({display_url(agent.url)})"
