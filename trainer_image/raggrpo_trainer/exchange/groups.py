"""Groups of completions as plain numbers, which the driver sends to the ranks."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion as T token ids; retrieved text is marked as not sampled."""

    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    """False for tokens of retrieved text, which are context and never trained on."""
    rollout_logprobs: tuple[float, ...]
    """Logprobs from the engine that sampled the tokens; 0.0 for tokens not sampled."""
    sample: Hashable = None
    """Key of its sample if the sample may have several rows; None: the sample has only this one."""

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
    continues: bool = False
    """Whether it belongs to the same prompt of the data as the group before it."""


def samples_of(groups: Sequence[Group]) -> list[Hashable]:
    """Return a key of the sample of each completion, in group order."""
    completions = [each for group in groups for each in group.completions]
    return [
        ("row", index) if completion.sample is None else completion.sample
        for index, completion in enumerate(completions)
    ]


def mini_batches(groups: Sequence[Group], num_prompts: int) -> Iterator[Sequence[Group]]:
    """Yield batches of the groups of `num_prompts` prompts; 0: of all. Yield at least one."""
    starts = [index for index, group in enumerate(groups) if not group.continues] or [0]
    firsts = starts[:: num_prompts or len(starts)]
    for first, end in zip(firsts, [*firsts[1:], len(groups)], strict=True):
        yield groups[first:end]
