"""Whether all compute the same model: a self-check before the first step, then every step.

Trainer, engine and the plain Hugging Face model must agree on log-probabilities of the same tokens.
What differs here differs again in every attempt, so it ends the job by its own name.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.data.prompts import PromptSource
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.ranks.ranks import Ranks
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.samples import Sampling

log = logging.getLogger(__name__)

LEAST_PROMPTS = 2
COMPLETIONS = 2
"""Of each prompt, so that rows hold several of them, as they do in training."""
PLAIN_TOKENS = 64
"""Of each completion that the plain model computes too: it holds whole logits."""
END_NATS = 1.0
"""A step's mean mismatch beyond which the importance weights correct nothing any more."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far two sets of log-probabilities of the same tokens are apart, in nats."""

    largest: float
    mean: float


LIMITS = {"FP32": Gap(1e-3, 1e-3), "FP16": Gap(0.1, 0.01), "BF16": Gap(0.5, 0.05)}
"""By precision. In 16 bits single tokens differ, but not on average: a wrong head does both."""


async def check_itself(
    config: TrainerConfig,
    prompts: PromptSource,
    collector: Collector,
    ranks: Ranks,
    *,
    step: int,
    cursor: Cursor,
) -> None:
    """Compare trainer, plain model and engine on completions that fill every rank's rows.

    Raises TrainerError: POLICY_MISMATCH if they differ.
    """
    number = max(LEAST_PROMPTS, config.world.num_ranks)
    sampling = Sampling(n=COMPLETIONS, temperature=config.rollout.temperature, top_p=1.0)
    chosen, _ = await prompts.next_batch(cursor, number)
    batch = await collector.prepare(step, chosen, sampling)
    rollouts = await collector.collect(batch)
    by_prompt: dict[tuple[int, ...], list[Completion]] = {}
    for sample in rollouts.samples:
        if any(sample.sampled):
            by_prompt.setdefault(sample.prompt_ids, []).append(sample.completion())
    if not by_prompt:
        raise TrainerError(
            ExitCode.RETRIEVAL_UNAVAILABLE,
            f"no sample could be made for the self-check: {rollouts.ledger.message()}",
        )
    groups = [Group(p, tuple(done), (1.0,) * len(done)) for p, done in by_prompt.items()]
    precision = ranks.infos[0].precision
    trainer = await ranks.logprobs(groups)
    plain = await ranks.plain_logprobs([_beginning(group) for group in groups])
    begun = [ours[: len(theirs)] for ours, theirs in zip(trainer, plain, strict=True)]
    judge(gap(begun, plain), precision, "the plain Hugging Face model")
    judge(
        gap(trainer, [_sampled(done) for g in groups for done in g.completions]),
        precision,
        "the rollout engine after the weight sync",
    )


def judge(found: Gap, precision: str, other: str) -> None:
    """Raise TrainerError if the trainer is further from the other than its precision explains."""
    limit = LIMITS[precision]
    text = (
        f"log-probabilities of the trainer and {other} differ by at most {found.largest:.3g} nats, "
        f"{found.mean:.3g} on average"
    )
    log.info(text)
    if not (found.largest <= limit.largest and found.mean <= limit.mean):
        raise TrainerError(
            ExitCode.POLICY_MISMATCH,
            f"{text}; limits in {precision} are {limit.largest:g} and {limit.mean:g}: they do not "
            "compute the same model",
        )


def check_step(metrics: StepMetrics, step: int) -> None:
    """Raise TrainerError if a step was trained on another model's completions."""
    if metrics.mismatch_mean > END_NATS:
        raise TrainerError(
            ExitCode.POLICY_MISMATCH,
            f"trainer and engine differ by {metrics.mismatch_mean:.3g} nats per token at step "
            f"{step}, limit {END_NATS:g}: they do not compute the same model",
        )


def gap(ours: Iterable[Sequence[float]], theirs: Iterable[Sequence[float]]) -> Gap:
    """Compare log-probabilities, one list per completion."""
    found = [
        abs(a - b)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    return Gap(max(found, default=0.0), sum(found) / max(1, len(found)))


def _beginning(group: Group) -> Group:
    short = tuple(
        Completion(
            done.token_ids[:PLAIN_TOKENS],
            done.sampled[:PLAIN_TOKENS],
            done.rollout_logprobs[:PLAIN_TOKENS],
        )
        for done in group.completions
    )
    return Group(group.prompt_ids, short, group.advantages)


def _sampled(done: Completion) -> list[float]:
    pairs = zip(done.rollout_logprobs, done.sampled, strict=True)
    return [value for value, sampled in pairs if sampled]
