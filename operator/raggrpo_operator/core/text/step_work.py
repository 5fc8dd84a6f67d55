"""The work of a training step, and how it depends on n. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.retrieval import EndpointRole, RetrievalMode
from raggrpo_api.spec.reward import SERVICE_REWARDS

from .sizing_text import INDENT

SUCCESS_RATES = (0.1, 0.5)
"""Shares of successful completions for which the table shows the share of equal groups."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Upper bounds of the work of one step."""

    prompts: int
    completions: int
    prompt_tokens: int
    sampled_tokens: int
    retrieval_calls: int
    """Queries to retrieval endpoints, without cached results and retries."""
    reward_calls: int
    """Calls to judges and reward services, without retries."""


def step_work(spec: JobSpec, n: int) -> StepWork:
    """Return the work of a step with `n` completions per prompt."""
    prompts = spec.data.train_batch_size
    services = sum(each.name in SERVICE_REWARDS for each in spec.reward.functions)
    return StepWork(
        prompts=prompts,
        completions=prompts * n,
        prompt_tokens=prompts * spec.data.max_prompt_length,
        sampled_tokens=prompts * n * spec.data.max_response_length,
        retrieval_calls=prompts * _calls_per_prompt(spec, n),
        reward_calls=prompts * n * services,
    )


def equal_group_share(success_rate: float, n: int) -> float:
    """Return the share of groups whose completions all succeed or all fail.

    They have no variance and contribute no gradient.
    """
    return float(success_rate**n + (1 - success_rate) ** n)


def work_lines(spec: JobSpec) -> Iterator[str]:
    """Yield the work of a step, and a table of the expected effect of other values of n."""
    n, data = spec.rollout.n, spec.data
    work = step_work(spec, n)
    rows = {
        "completions": (work.completions, f"{work.prompts} prompts × n {n}"),
        "prompt tokens": (
            work.prompt_tokens,
            f"{work.prompts} prompts × maxPromptLength {data.max_prompt_length}",
        ),
        "sampled tokens": (
            work.sampled_tokens,
            f"{work.completions} completions × maxResponseLength {data.max_response_length}",
        ),
        "RAG calls": (work.retrieval_calls, _retrieval_reason(spec)),
        "reward calls": (work.reward_calls, "one per completion, judge and reward service"),
    }
    for name, (amount, reason) in rows.items():
        if amount:
            yield f"{INDENT}{name:<16}{amount:>12,}  {reason}"
    yield f"{INDENT}expected effect of n; equal groups contribute no gradient:"
    rates = "".join(f"{f'equal at {rate:.0%} success':>22}" for rate in SUCCESS_RATES)
    yield f"{INDENT * 2}{'n':>4}{'completions':>14}{'tokens':>14}{'RAG calls':>12}{rates}"
    for other in sorted({max(2, (n + 1) // 2), n, 2 * n}):
        yield f"{INDENT * 2}{_effect(spec, other)}"


def _effect(spec: JobSpec, n: int) -> str:
    work = step_work(spec, n)
    amounts = f"{work.completions:>14,}{work.sampled_tokens:>14,}{work.retrieval_calls:>12,}"
    shares = "".join(f"{f'{equal_group_share(rate, n):.0%}':>22}" for rate in SUCCESS_RATES)
    return f"{n:>4}{amounts}{shares}"


def _calls_per_prompt(spec: JobSpec, n: int) -> int:
    retrieval = spec.retrieval
    roles = [endpoint.role for endpoint in retrieval.endpoints]
    match retrieval.mode:
        case RetrievalMode.PROMPT:
            return roles.count(EndpointRole.RETRIEVER)
        case RetrievalMode.SEARCH:
            return n * retrieval.max_turns
        case RetrievalMode.REWARD:
            # The calls of a reference endpoint are equal for all completions of a prompt.
            references = [e for e in retrieval.endpoints if e.role is EndpointRole.REFERENCE]
            per_reference = sum(1 if each.cache else n for each in references)
            return n * roles.count(EndpointRole.ACTOR) + per_reference
        case _:
            return 0


def _retrieval_reason(spec: JobSpec) -> str:
    match spec.retrieval.mode:
        case RetrievalMode.PROMPT:
            return "one per prompt and endpoint"
        case RetrievalMode.SEARCH:
            return f"at most maxTurns {spec.retrieval.max_turns} per completion"
        case _:
            return "per completion to actors, per prompt to cached references"
