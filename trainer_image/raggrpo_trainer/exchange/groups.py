"""What the driver hands to the ranks: groups of completions as plain numbers, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer as token ids; retrieved text inside it is marked as not sampled."""

    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    """False: inserted by retrieval, read by the model but never trained on."""
    rollout_logprobs: tuple[float, ...]
    """Of the engine that sampled the tokens; 0.0 where not sampled."""

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy chose."""
        return sum(self.sampled)


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt, its completions and their advantages; failed samples are already gone."""

    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    advantages: tuple[float, ...]
