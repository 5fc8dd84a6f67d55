"""Checks RetrievalReachable and RewardCode: the services and the user code of the job."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.spec.placeholders import column_placeholders
from raggrpo_api.spec.retrieval import EndpointRole, RetrievalEndpoint
from raggrpo_api.spec.reward import RewardKind
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.json_service import RetryPolicy
from raggrpo_trainer.job_config import endpoint_headers, judge_headers
from raggrpo_trainer.retrieval.client import WARM_UP_TEXT, RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.sample_failures import RetrievalFailed, RewardFailed

from .finding import Finding, finding_for, not_evaluated
from .first_row import answered_sample, read_first_row
from .python_rewards import check_python_rewards

RETRY = RetryPolicy(retries=1)
"""One retry: reports a failing endpoint within seconds, but allows for a cold start."""
REMEDIES: Final = {
    RewardKind.JUDGE: "check that the judge is running and that its url, model and headers "
    "are correct",
    RewardKind.HTTP: 'check that the service is running and that it returns {"score": number}',
}
JUDGE_REMEDY: Final = "check judge.prompt, scorePattern and scorePath"
EMPTY_RESULT_REMEDY: Final = (
    "no passages for the first row of the data; check that the service has documents, and "
    "that its scoreThreshold and filters do not exclude them"
)
SERVICES: Final = REMEDIES.keys()
"""Kinds of rewards that call a service."""


async def check_retrieval(config: TrainerConfig, env: Mapping[str, str]) -> Finding:
    """Call all external endpoints once, concurrently."""
    spec = config.retrieval
    endpoints = spec.external
    if not endpoints:
        managed = ", ".join(endpoint.name for endpoint in spec.endpoints)
        reason = f"{managed}: starts after preflight" if managed else "no endpoint is specified"
        return not_evaluated(CheckId.RETRIEVAL_REACHABLE, reason)
    spec = spec.model_copy(update={"endpoints": endpoints})
    try:
        headers = endpoint_headers(spec, env)
    except TrainerError as error:
        return finding_for(CheckId.RETRIEVAL_REACHABLE, [str(error)], "", error.exit_code)
    fields = dict.fromkeys(spec.actor_output.fields, WARM_UP_TEXT)
    row = await asyncio.to_thread(_first_row, config)
    if row is None:
        return not_evaluated(CheckId.RETRIEVAL_REACHABLE, "request templates require readable data")
    async with RetrievalClient(spec, headers, retry=RETRY) as client:
        outcomes = await asyncio.gather(*(_call(client, e, fields, row) for e in endpoints))
    problems = [each.evidence for each in outcomes if each.failure is not None]
    evidence = "; ".join(each.evidence for each in outcomes)
    failures = [each.failure for each in outcomes if each.failure is not None]
    is_outage = all(is_outage_failure(failure) for failure in failures)
    code = ExitCode.RETRIEVAL_UNAVAILABLE if is_outage else ExitCode.PREFLIGHT_FAILED
    is_unusual = any(each.is_unusual for each in outcomes)
    return finding_for(CheckId.RETRIEVAL_REACHABLE, problems, evidence, code, is_unusual=is_unusual)


def is_outage_failure(failure: CallFailed) -> bool:
    """Return whether a failure shows that the service is down, rather than wrongly specified.

    In preflight, an unknown host name is a mistake in the spec; for a service that has responded
    before, it would be an outage.
    """
    return failure.transient and failure.cause is not FailureCause.DNS_FAILURE


async def check_rewards(config: TrainerConfig, env: Mapping[str, str]) -> Finding:
    """Call Python rewards (user code) in separate processes, and all reward services."""
    terms = config.reward.functions
    services = [index for index, term in enumerate(terms) if term.name in SERVICES]
    problems, evidence = await check_python_rewards(config)
    is_code_invalid = bool(problems)
    is_outage = not problems  # so far; an outage ends by itself, invalid code does not
    if not services and not problems and not evidence:
        return not_evaluated(CheckId.REWARD_CODE, "no reward is a Python function or a service")
    if services:
        called = await _call_services(config, services, env)
        problems += called.problems
        evidence += called.evidence
        is_outage = is_outage and called.is_outage
    code = ExitCode.RETRIEVAL_UNAVAILABLE if is_outage else ExitCode.PREFLIGHT_FAILED
    if is_code_invalid:
        code = ExitCode.REWARD_CODE_ERROR
    return finding_for(CheckId.REWARD_CODE, problems, "; ".join(evidence), code)


@dataclass
class _ServiceOutcomes:
    """The outcomes of calling the reward services."""

    problems: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    is_outage: bool = True
    """Whether outages are the only problems."""


async def _call_services(
    config: TrainerConfig, indices: Sequence[int], env: Mapping[str, str]
) -> _ServiceOutcomes:
    """Let each judge and HTTP service score the answer of the first row, or a placeholder.

    A judge may reply to a placeholder without a grade; this does not fail the check.
    """
    outcomes = _ServiceOutcomes()
    row = await asyncio.to_thread(_first_row, config)
    if row is None:
        outcomes.evidence.append(
            "reward services were not called: their requests require readable data"
        )
        return outcomes
    sample = answered_sample(row)
    is_placeholder = sample.completion == WARM_UP_TEXT
    for index in indices:
        term = config.reward.functions[index]
        reward = config.reward.model_copy(update={"functions": [term]})
        kind = f"judge {term.judge.model}" if term.judge else "service"
        place = f"reward.functions[{index}] ({kind} at {display_url(term.url)})"
        try:
            headers = judge_headers(reward, env)
            async with Rewards(reward, config.retrieval, RETRY, headers) as rewards:
                score = await rewards.score(sample)
        except TrainerError as error:
            outcomes.problems.append(f"{place}: {error}")
            outcomes.is_outage = False
        except RewardFailed as failure:
            problem = f"{place}: {failure.cause}: {failure.detail}"
            has_no_grade = term.judge and failure.cause is FailureCause.NOT_A_NUMBER
            if has_no_grade and is_placeholder:
                outcomes.evidence.append(problem)
                continue
            remedy = JUDGE_REMEDY if has_no_grade else REMEDIES[term.name]
            outcomes.problems.append(f"{problem}; {remedy}")
            outcomes.is_outage = outcomes.is_outage and is_outage_failure(failure)
        else:
            outcomes.evidence.append(
                f"{place} returned score {next(iter(score.parts.values())):.2f}"
            )
    return outcomes


def _first_row(config: TrainerConfig) -> Prompt | None:
    """Return the first row of the data, or a placeholder if it cannot be read.

    Returns None if the row cannot be read and templates name its columns. Other checks report why
    it cannot be read.
    """
    row = read_first_row(config)
    if row is None and not column_placeholders(config.retrieval, config.reward):
        return Prompt(0, WARM_UP_TEXT, WARM_UP_TEXT, (), "")
    return row


@dataclass(frozen=True, slots=True)
class _EndpointOutcome:
    """The outcome of calling an endpoint."""

    evidence: str
    failure: CallFailed | None = None
    """The failure; None if the response is usable."""
    is_unusual: bool = False
    """Whether the response is usable but has no passages, or more than `topK`."""


async def _call(
    client: RetrievalClient, endpoint: RetrievalEndpoint, fields: Mapping[str, str], row: Prompt
) -> _EndpointOutcome:
    actor_fields = fields if endpoint.role is EndpointRole.ACTOR else None
    # As in a run: a retriever gets the query, other endpoints get the dialogue context.
    query = row.query if endpoint.role is EndpointRole.RETRIEVER else row.context or row.query
    started = time.monotonic()
    try:
        passages = await client.retrieve(
            endpoint.name, query, actor_fields, sample="preflight", columns=row.columns
        )
    except RetrievalFailed as failure:
        problem = (
            f"endpoint {endpoint.name} ({endpoint.display_url}): {failure.cause}: {failure.detail}"
        )
        if failure.cause is FailureCause.MISSING_FIELD:  # the detail already has a remedy
            return _EndpointOutcome(problem, failure)
        remedy = "check that the service is running and that its url and headers are correct"
        return _EndpointOutcome(f"{problem}; {remedy}", failure)
    seconds = time.monotonic() - started
    evidence = f"{endpoint.name}: {len(passages)} passages in {seconds:.3f} s"
    warning = client.surplus(endpoint.name) if passages else EMPTY_RESULT_REMEDY
    if not warning:
        return _EndpointOutcome(evidence)
    return _EndpointOutcome(f"{evidence}; {warning}", is_unusual=True)
