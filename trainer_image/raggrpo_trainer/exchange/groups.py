"""Groups of completions as plain numbers, which the driver sends to the ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion as T token ids; retrieved text is marked as not sampled."""

    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    """False for tokens of retrieved text, which are context and never trained on."""
    rollout_logprobs: tuple[float, ...]
    """Logprobs from the engine that sampled the tokens; 0.0 for tokens not sampled."""

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(self.sampled)


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt, its completions and their advantages, without failed samples."""

    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    advantages: tuple[float, ...]
