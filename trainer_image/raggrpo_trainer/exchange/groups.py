"""What the driver sends to the ranks: groups of completions as plain numbers, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion as token ids; retrieved text in it is marked as not sampled."""

    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    """False: inserted by retrieval, read by the model but never trained on."""
    rollout_logprobs: tuple[float, ...]
    """From the engine that sampled the tokens; 0.0 where not sampled."""

    @property
    def num_sampled(self) -> int:
        """Number of tokens the policy sampled."""
        return sum(self.sampled)


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt, its completions and their advantages; failed samples are already removed."""

    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    advantages: tuple[float, ...]
