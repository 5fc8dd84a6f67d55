"""Checks RetrievalReachable and RewardCode: the services and code the job calls."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.preflight import CheckId
from raggrpo_api.spec.retrieval import EndpointRole, RetrievalEndpoint
from raggrpo_api.spec.reward import RewardKind, RewardSpec
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.json_service import RetryPolicy
from raggrpo_trainer.job_config import endpoint_headers
from raggrpo_trainer.retrieval.client import WARM_UP_TEXT, RetrievalClient
from raggrpo_trainer.sample_failures import CallFailed, FailureCause, RetrievalFailed

from .finding import Finding, judged, not_evaluated

RETRY = RetryPolicy(retries=1)
"""One retry: reports a refusing endpoint within seconds, yet lets a cold one be slow once."""


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
        return judged(CheckId.RETRIEVAL_REACHABLE, [str(error)], "", error.exit_code)
    fields = dict.fromkeys(spec.actor_output.fields, WARM_UP_TEXT)
    async with RetrievalClient(spec, headers, retry=RETRY) as client:
        answers = await asyncio.gather(*(_call(client, e, fields) for e in endpoints))
    problems = [text for failure, text in answers if failure is not None]
    evidence = "; ".join(text for _, text in answers)
    failures = [failure for failure, _ in answers if failure is not None]
    is_outage = all(may_come_back(failure) for failure in failures)
    code = ExitCode.RETRIEVAL_UNAVAILABLE if is_outage else ExitCode.PREFLIGHT_FAILED
    return judged(CheckId.RETRIEVAL_REACHABLE, problems, evidence, code)


def may_come_back(failure: CallFailed) -> bool:
    """Return whether the service is down rather than wrong; a name nobody knows is a typing error.

    Only a preflight asks: for a service that has answered before, an unknown name is an outage too.
    """
    return failure.transient and failure.cause is not FailureCause.DNS_FAILURE


async def check_rewards(spec: RewardSpec) -> Finding:
    """Import every Python reward, each in its own process because it is user code."""
    targets = [term.python for term in spec.functions if term.name is RewardKind.PYTHON]
    if not targets:
        return not_evaluated(CheckId.REWARD_CODE, "no Python reward")
    outcomes = await asyncio.gather(*(_import(target, spec.code_from.path) for target in targets))
    problems = [outcome for outcome in outcomes if outcome]
    evidence = f"{', '.join(targets)} can be imported"
    return judged(CheckId.REWARD_CODE, problems, evidence, ExitCode.REWARD_CODE_ERROR)


async def _call(
    client: RetrievalClient, endpoint: RetrievalEndpoint, fields: Mapping[str, str]
) -> tuple[CallFailed | None, str]:
    """Return why there is no usable answer, None if there is one, and what happened."""
    sent = fields if endpoint.role is EndpointRole.ACTOR else None
    began = time.monotonic()
    try:
        passages = await client.retrieve(endpoint.name, WARM_UP_TEXT, sent, sample="preflight")
    except RetrievalFailed as failure:
        return failure, (
            f"endpoint {endpoint.name} ({endpoint.shown_url}): {failure.cause}: {failure.detail}; "
            "check that the service runs, its URL and its headers"
        )
    seconds = time.monotonic() - began
    return None, f"{endpoint.name}: {len(passages)} passages in {seconds:.3f} s"


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
    reason = lines[-1] if lines else f"its process ended with code {process.returncode}"
    return f"{reason}; check reward.functions[].python and reward.codeFrom"
