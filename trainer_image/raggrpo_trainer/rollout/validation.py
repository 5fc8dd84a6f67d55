"""Validation on held-out prompts: one greedy completion each, scored by exact match and reward."""

from collections.abc import Sequence

from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.exchange.validation_result import ValidationResult

from .interface import RolloutCollector
from .samples import Rollouts, Sampling

GREEDY = Sampling(n=1, temperature=0.0, top_p=1.0)


class Validator:
    """Runs validation with the rollout code of training."""

    def __init__(
        self, config: TrainerConfig, prompts: Sequence[Prompt], collector: RolloutCollector
    ) -> None:
        self._prompts = prompts[: config.validation.max_samples]
        self._collector = collector
        is_prompt_mode = config.retrieval.mode is RetrievalMode.PROMPT
        self._with_control = config.validation.shuffled_control and is_prompt_mode

    async def measure(self, step: int) -> ValidationResult:
        """Sample and score all held-out prompts; repeat with swapped passages if configured.

        Raises TrainerError if more calls failed than `maxFailureRatio` allows.
        """
        rollouts = await self._rollouts(step, swap_passages=False)
        control = None
        if self._with_control:
            control = (await self._rollouts(step, swap_passages=True)).exact_match
        scored = rollouts.scored
        rewards = [sample.reward or 0.0 for sample in scored]
        return ValidationResult(
            exact_match=rollouts.exact_match,
            reward_mean=sum(rewards) / max(1, len(rewards)),
            num_samples=len(scored),
            num_failed=len(rollouts.samples) - len(scored),
            control_exact_match=control,
        )

    async def _rollouts(self, step: int, *, swap_passages: bool) -> Rollouts:
        batch = await self._collector.prepare(
            step, self._prompts, GREEDY, swap_passages=swap_passages
        )
        rollouts = await self._collector.collect(batch)
        self._collector.check_failures(rollouts)
        return rollouts
