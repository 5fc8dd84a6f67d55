"""Self-check before the first step: trainer, engine and plain model must agree on logprobs.

The logprobs of the same tokens are compared between the trainer, the rollout engine and the plain
Hugging Face model. A difference would recur in every attempt, so it has a separate exit code.
After every step, `check_mismatch` checks the mean difference between trainer and engine.
"""

import logging
import math
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
from raggrpo_trainer.rollout.interface import RolloutCollector
from raggrpo_trainer.rollout.samples import Sampling

log = logging.getLogger(__name__)

MIN_PROMPTS = 2
COMPLETIONS_PER_PROMPT = 2
"""Completions per prompt; more than one, so that a row has several completions as in training."""
MAX_PLAIN_TOKENS = 64
"""Maximum tokens per completion for the plain model, which materializes full logits."""
MAX_MISMATCH_NATS = 1.0
"""Limit of a step's mean mismatch in nats per token; importance weights cannot correct a larger
mismatch."""


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """Absolute difference between two sets of logprobs of the same tokens, in nats."""

    largest: float
    mean: float


LIMITS = {
    "FP32": LogprobGap(1e-3, 1e-3),
    "FP16": LogprobGap(0.1, 0.01),
    "BF16": LogprobGap(0.5, 0.05),
}
"""Limits of the gap by precision. In 16 bits, single tokens differ by much more than the mean; a
wrong LM head exceeds both limits."""


async def run_self_check(
    config: TrainerConfig,
    prompts: PromptSource,
    collector: RolloutCollector,
    ranks: Ranks,
    *,
    step: int,
    cursor: Cursor,
) -> None:
    """Compare trainer, plain model and engine on at least one group of completions per rank.

    Raises TrainerError: POLICY_MISMATCH if they differ, RETRIEVAL_UNAVAILABLE if no sample could be
    generated.
    """
    num_prompts = max(MIN_PROMPTS, config.world.num_ranks)
    sampling = Sampling(n=COMPLETIONS_PER_PROMPT, temperature=config.rollout.temperature, top_p=1.0)
    chosen, _ = await prompts.next_batch(cursor, num_prompts)
    batch = await collector.prepare(step, chosen, sampling)
    rollouts = await collector.collect(batch)
    by_prompt: dict[tuple[int, ...], list[Completion]] = {}
    for sample in rollouts.samples:
        if any(sample.sampled):
            by_prompt.setdefault(sample.prompt_ids, []).append(sample.completion())
    if not by_prompt:
        raise TrainerError(
            ExitCode.RETRIEVAL_UNAVAILABLE,
            f"no sample of the self-check could be generated: {rollouts.ledger.message()}",
        )
    groups = [
        Group(prompt_ids, tuple(completions), (1.0,) * len(completions))
        for prompt_ids, completions in by_prompt.items()
    ]
    precision = ranks.infos[0].precision
    trainer = await ranks.logprobs(groups)
    plain = await ranks.plain_logprobs([_truncated(group) for group in groups])
    starts = [ours[: len(theirs)] for ours, theirs in zip(trainer, plain, strict=True)]
    check_gap(logprob_gap(starts, plain), precision, "the plain Hugging Face model")
    engine = [_engine_logprobs(each) for group in groups for each in group.completions]
    check_gap(logprob_gap(trainer, engine), precision, "the rollout engine after the weight sync")


def check_gap(gap: LogprobGap, precision: str, other: str) -> None:
    """Raise TrainerError POLICY_MISMATCH if a gap exceeds the limits of the precision."""
    limit = LIMITS[precision]
    if not math.isfinite(gap.mean):
        raise TrainerError(
            ExitCode.POLICY_MISMATCH,
            f"logprobs of the trainer or {other} are not finite in {precision}: check the "
            "model, or set a training.precision with a larger range (BF16, FP32)",
        )
    text = (
        f"logprobs of the trainer and {other} differ by up to {gap.largest:.3g} nats, "
        f"{gap.mean:.3g} on average"
    )
    log.info(text)
    if not (gap.largest <= limit.largest and gap.mean <= limit.mean):
        raise TrainerError(
            ExitCode.POLICY_MISMATCH,
            f"{text} (limits with {precision}: {limit.largest:g}, and {limit.mean:g} on average): "
            "the two do not compute the same model",
        )


def check_mismatch(metrics: StepMetrics, step: int) -> None:
    """Raise TrainerError POLICY_MISMATCH if a step's mean mismatch exceeds MAX_MISMATCH_NATS."""
    if metrics.mismatch_mean > MAX_MISMATCH_NATS:
        raise TrainerError(
            ExitCode.POLICY_MISMATCH,
            f"logprobs of trainer and engine differ by {metrics.mismatch_mean:.3g} nats per token "
            f"at step {step} (limit {MAX_MISMATCH_NATS:g}): the two do not compute the same model",
        )


def logprob_gap(ours: Iterable[Sequence[float]], theirs: Iterable[Sequence[float]]) -> LogprobGap:
    """Return the gap between two sets of logprobs; each argument has one list per completion."""
    differences = [
        abs(a - b)
        for our_logprobs, their_logprobs in zip(ours, theirs, strict=True)
        for a, b in zip(our_logprobs, their_logprobs, strict=True)
    ]
    return LogprobGap(max(differences, default=0.0), sum(differences) / max(1, len(differences)))


def _truncated(group: Group) -> Group:
    """Return the group with the first MAX_PLAIN_TOKENS tokens of each completion."""
    completions = tuple(
        Completion(
            each.token_ids[:MAX_PLAIN_TOKENS],
            each.sampled[:MAX_PLAIN_TOKENS],
            each.rollout_logprobs[:MAX_PLAIN_TOKENS],
        )
        for each in group.completions
    )
    return Group(group.prompt_ids, completions, group.advantages)


def _engine_logprobs(completion: Completion) -> list[float]:
    pairs = zip(completion.rollout_logprobs, completion.sampled, strict=True)
    return [logprob for logprob, is_sampled in pairs if is_sampled]
