"""Checks RetrievalReachable and RewardCode: the services and code the job calls."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from raggrpo_api.fields.addresses import display_url
from raggrpo_api.spec.placeholders import column_placeholders
from raggrpo_api.spec.retrieval import EndpointRole, RetrievalEndpoint
from raggrpo_api.spec.reward import RewardKind
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.json_service import RetryPolicy
from raggrpo_trainer.job_config import endpoint_headers, judge_headers
from raggrpo_trainer.retrieval.client import WARM_UP_TEXT, RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards, RewardSample
from raggrpo_trainer.sample_failures import RetrievalFailed, RewardFailed

from .finding import Finding, finding_for, not_evaluated

RETRY = RetryPolicy(retries=1)
"""One retry: reports a refusing endpoint within seconds, yet lets a cold one be slow once."""
REMEDIES: Final = {
    RewardKind.JUDGE: "check that the judge runs, its url, model and headers",
    RewardKind.HTTP: 'check that it runs, its url, and that it answers {"score": number}',
}
JUDGE_REMEDY: Final = "check judge.prompt, scorePattern and scorePath"
EMPTY_RESULT_REMEDY: Final = (
    "nothing was found for the data's first row; check that the service has documents, "
    "and its scoreThreshold and filters"
)
SERVICES: Final = REMEDIES.keys()
"""Rewards that are asked over the network."""


async def check_retrieval(config: TrainerConfig, env: Mapping[str, str]) -> Finding:
    """Make one real call to every external endpoint, all at the same time."""
    spec = config.retrieval
    endpoints = spec.external
    if not endpoints:
        managed = ", ".join(endpoint.name for endpoint in spec.endpoints)
        why = f"{managed}: started after preflight" if managed else "no endpoint"
        return not_evaluated(CheckId.RETRIEVAL_REACHABLE, why)
    spec = spec.model_copy(update={"endpoints": endpoints})
    try:
        headers = endpoint_headers(spec, env)
    except TrainerError as error:
        return finding_for(CheckId.RETRIEVAL_REACHABLE, [str(error)], "", error.exit_code)
    fields = dict.fromkeys(spec.actor_output.fields, WARM_UP_TEXT)
    row = await asyncio.to_thread(_first_row, config)
    if row is None:
        return not_evaluated(CheckId.RETRIEVAL_REACHABLE, "its templates need the data")
    async with RetrievalClient(spec, headers, retry=RETRY) as client:
        answers = await asyncio.gather(*(_call(client, e, fields, row) for e in endpoints))
    problems = [answer.told for answer in answers if answer.failure is not None]
    evidence = "; ".join(answer.told for answer in answers)
    failures = [answer.failure for answer in answers if answer.failure is not None]
    is_outage = all(is_outage_failure(failure) for failure in failures)
    code = ExitCode.RETRIEVAL_UNAVAILABLE if is_outage else ExitCode.PREFLIGHT_FAILED
    is_unusual = any(answer.is_empty for answer in answers)
    return finding_for(CheckId.RETRIEVAL_REACHABLE, problems, evidence, code, is_unusual=is_unusual)


def is_outage_failure(failure: CallFailed) -> bool:
    """Return whether the service is down rather than wrong; a name nobody knows is a typing error.

    Only a preflight asks: for a service that has answered before, an unknown name is an outage too.
    """
    return failure.transient and failure.cause is not FailureCause.DNS_FAILURE


async def check_rewards(config: TrainerConfig, env: Mapping[str, str]) -> Finding:
    """Import every Python reward, in its own process because it is user code; ask every service."""
    spec = config.reward
    targets = [term.python for term in spec.functions if term.name is RewardKind.PYTHON]
    services = [place for place, term in enumerate(spec.functions) if term.name in SERVICES]
    if not targets and not services:
        return not_evaluated(CheckId.REWARD_CODE, "neither a Python reward nor a service")
    outcomes = await asyncio.gather(*(_import(target, spec.code_from.path) for target in targets))
    problems = [outcome for outcome in outcomes if outcome]
    evidence = [f"{target} can be imported" for target in targets]
    is_outage = not problems  # so far; a service that is down is waited for, wrong code is not
    if services:
        asked = await _ask_services(config, services, env)
        problems, evidence = problems + asked.problems, evidence + asked.evidence
        is_outage = is_outage and asked.is_outage_failure
    code = ExitCode.RETRIEVAL_UNAVAILABLE if is_outage else ExitCode.PREFLIGHT_FAILED
    if any(outcomes):
        code = ExitCode.REWARD_CODE_ERROR
    return finding_for(CheckId.REWARD_CODE, problems, "; ".join(evidence), code)


@dataclass
class _Asked:
    """What came of asking the reward services."""

    problems: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    is_outage_failure: bool = True
    """Whether all that went wrong is that services are down."""


async def _ask_services(
    config: TrainerConfig, places: Sequence[int], env: Mapping[str, str]
) -> _Asked:
    """Have every judge and HTTP service score the first row's own answer, or a stand-in.

    To a stand-in a judge may well reply without a grade, so that does not fail the check.
    """
    asked = _Asked()
    row = await asyncio.to_thread(_first_row, config)
    if row is None:
        asked.evidence.append("judges are not asked: their prompts need the data")
        return asked
    sample = RewardSample(
        "preflight",
        row.text,
        next((answer for answer in row.answer if answer.strip()), WARM_UP_TEXT),
        row.answer,
        row.context,
        columns=row.columns,
    )
    is_stand_in = sample.completion == WARM_UP_TEXT
    for place in places:
        term = config.reward.functions[place]
        alone = config.reward.model_copy(update={"functions": [term]})
        what = f"judge {term.judge.model}" if term.judge else "service"
        at = f"reward.functions[{place}] ({what} at {display_url(term.url)})"
        try:
            headers = judge_headers(alone, env)
            async with Rewards(alone, config.retrieval, RETRY, headers) as rewards:
                score = await rewards.score(sample)
        except TrainerError as error:
            asked.problems.append(f"{at}: {error}")
            asked.is_outage_failure = False
        except RewardFailed as failure:
            told = f"{at}: {failure.cause}: {failure.detail}"
            has_no_grade = term.judge and failure.cause is FailureCause.NOT_A_NUMBER
            if has_no_grade and is_stand_in:
                asked.evidence.append(told)
                continue
            asked.problems.append(
                f"{told}; {JUDGE_REMEDY if has_no_grade else REMEDIES[term.name]}"
            )
            asked.is_outage_failure = asked.is_outage_failure and is_outage_failure(failure)
        else:
            asked.evidence.append(f"{at} answers {next(iter(score.parts.values())):.2f}")
    return asked


def _first_row(config: TrainerConfig) -> Prompt | None:
    """Return the first row of the data, or a stand-in where that cannot be read.

    None if templates name its columns then; other checks say what is wrong with the data.
    """
    first = config.data.model_copy(update={"max_samples": 1})
    try:
        [row] = read_prompts(first.train_files, first, config.retrieval, config.reward)
    except TrainerError:
        if column_placeholders(config.retrieval, config.reward):
            return None
        return Prompt(0, WARM_UP_TEXT, WARM_UP_TEXT, (), "")
    return row


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of one call of an endpoint."""

    told: str
    failure: CallFailed | None = None
    """Why there is no usable answer."""
    is_empty: bool = False
    """Whether it is usable and holds nothing."""


async def _call(
    client: RetrievalClient, endpoint: RetrievalEndpoint, fields: Mapping[str, str], row: Prompt
) -> _Answer:
    sent = fields if endpoint.role is EndpointRole.ACTOR else None
    # A retriever is asked the row's question, the others are told its dialogue, as in a run.
    asked = row.query if endpoint.role is EndpointRole.RETRIEVER else row.context or row.query
    began = time.monotonic()
    try:
        passages = await client.retrieve(
            endpoint.name, asked, sent, sample="preflight", columns=row.columns
        )
    except RetrievalFailed as failure:
        what = (
            f"endpoint {endpoint.name} ({endpoint.display_url}): {failure.cause}: {failure.detail}"
        )
        if failure.cause is FailureCause.MISSING_FIELD:  # it says what to set
            return _Answer(what, failure)
        told = f"{what}; check that the service is running, its url and headers"
        return _Answer(told, failure)
    seconds = time.monotonic() - began
    told = f"{endpoint.name}: {len(passages)} passages in {seconds:.3f} s"
    return _Answer(told) if passages else _Answer(f"{told}; {EMPTY_RESULT_REMEDY}", is_empty=True)


async def _import(target: str, folder: str) -> str:
    """Return why a reward cannot be imported; empty if it can."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "raggrpo_trainer.rewards.worker", target, "1"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, [folder]), *sys.path])},
    )
    _, errors = await process.communicate()
    if process.returncode == 0:
        return ""
    lines = errors.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else f"its process exited with code {process.returncode}"
    return f"{reason}; check reward.functions[].python and reward.codeFrom"
