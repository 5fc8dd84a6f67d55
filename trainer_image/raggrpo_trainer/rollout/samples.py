"""The data of a step: samples, their batch, and the resulting rollouts."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.engines.generation import Generation
from raggrpo_trainer.exchange.groups import Completion
from raggrpo_trainer.rollout.failure_ledger import FailureLedger


@dataclass(slots=True)
class Sample:
    """One completion of one prompt, filled in during the step."""

    prompt: Prompt
    index: int
    """Index among the completions of this prompt in the step; part of the key of its seed."""
    group: int
    """Position of the prompt in the batch; a prompt that occurs twice has two groups."""
    prompt_ids: tuple[int, ...] = ()
    passages: tuple[str, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    exact_match: float | None = None
    """Exact match, or None if the prompt has no reference answer."""
    is_truncated: bool = False
    """Whether the completion was cut at `data.maxResponseLength`."""
    is_parsed: bool | None = None
    """Whether the completion has the output that the reward reads; None if it was not scored."""
    failure: str = ""
    """Why the sample failed; empty if it did not."""
    forks: list[tuple[tuple[int, ...], Completion]] = field(default_factory=list)
    """Further rows of an agent's sample: the prompt and the completion of each."""

    @property
    def name(self) -> str:
        """The sample's id in log lines and messages."""
        return f"{self.prompt.index}/{self.index}"

    @property
    def failure_kind(self) -> str:
        """Source and cause of the failure without its detail, or ""."""
        return ": ".join(self.failure.split(": ")[:2])

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens in all rows."""
        return sum(self.sampled) + sum(completion.num_sampled for _, completion in self.forks)

    def completion(self) -> Completion:
        """Return the first row as passed to the ranks."""
        key: Hashable = (self.group, self.index) if self.forks else None
        return Completion(tuple(self.token_ids), tuple(self.sampled), tuple(self.logprobs), key)

    def rows(self) -> list[tuple[tuple[int, ...], Completion]]:
        """Return the prompt and the completion of each row."""
        return [(self.prompt_ids, self.completion()), *self.forks]

    def append_generation(self, generation: Generation) -> None:
        """Append tokens that the policy sampled."""
        self.token_ids += generation.token_ids
        self.sampled += [True] * len(generation.token_ids)
        self.logprobs += generation.logprobs
        self.is_truncated = generation.finish_reason == "length"

    def append_retrieved(self, token_ids: Sequence[int]) -> None:
        """Append retrieved tokens, which are context only and never trained on."""
        self.token_ids += token_ids
        self.sampled += [False] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, the only difference between training and validation rollouts."""

    n: int
    temperature: float
    top_p: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of a step; their prompts are composed with the retrieved passages."""

    step: int
    samples: tuple[Sample, ...]
    sampling: Sampling
    ledger: FailureLedger
    """Calls and failures of this step."""
    stage_ends: Sequence[tuple[str, float]]
    """Stages of the preparation in order with the time in seconds at which they ended."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The finished samples of a step, and when its stages ended."""

    samples: tuple[Sample, ...]
    stage_ends: Sequence[tuple[str, float]]
    """Stages in order with the time in seconds at which they ended."""
    ledger: FailureLedger

    def seconds_since(self, time: float) -> dict[str, float]:
        """Return the seconds of each stage after `time`; the end of a stage starts the next."""
        seconds: dict[str, float] = {}
        for stage, end in self.stage_ends:
            seconds[stage] = seconds.get(stage, 0.0) + max(0.0, end - time)
            time = max(time, end)
        return seconds

    @property
    def exact_match(self) -> float | None:
        """Mean over the scored samples with reference answers, or None without any."""
        values = [s.exact_match for s in self.scored if s.exact_match is not None]
        return fmean(values) if values else None

    @property
    def scored(self) -> list[Sample]:
        """The samples with a reward."""
        return [s for s in self.samples if s.reward is not None]


def make_samples(prompts: Sequence[Prompt], n: int) -> list[list[Sample]]:
    """Return n samples for each prompt of a batch.

    Sample indices continue when a prompt occurs again, so that its groups have different seeds.
    """
    occurrences: Counter[int] = Counter()
    groups = []
    for position, prompt in enumerate(prompts):
        first = occurrences[prompt.index] * n
        groups.append([Sample(prompt, first + i, position) for i in range(n)])
        occurrences[prompt.index] += 1
    return groups
