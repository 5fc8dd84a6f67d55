"""What goes through a step: samples, the batch they form, and what became of it. Does no work."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.engines.engine import Generation
from raggrpo_trainer.exchange.groups import Completion
from raggrpo_trainer.sample_failures import FailureLedger


@dataclass(slots=True)
class Sample:
    """One completion of one prompt on its way through the step."""

    prompt: Prompt
    index: int
    prompt_ids: tuple[int, ...] = ()
    passages: tuple[str, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    exact_match: float = 0.0
    failure: str = ""

    @property
    def name(self) -> str:
        """Return the id that log lines and messages carry (A11)."""
        return f"{self.prompt.index}/{self.index}"

    def completion(self) -> Completion:
        """Return the tokens as the trainer takes them."""
        return Completion(tuple(self.token_ids), tuple(self.sampled), tuple(self.logprobs))

    def take(self, generation: Generation) -> None:
        """Append what the policy sampled."""
        self.token_ids += generation.token_ids
        self.sampled += [True] * len(generation.token_ids)
        self.logprobs += generation.logprobs

    def insert(self, token_ids: Sequence[int]) -> None:
        """Append retrieved tokens: read by the policy, never trained on."""
        self.token_ids += token_ids
        self.sampled += [False] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a batch is sampled; validation differs from training only here."""

    n: int
    temperature: float
    top_p: float


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's prompts, composed with what was retrieved for them."""

    step: int
    samples: tuple[Sample, ...]
    sampling: Sampling
    ledger: FailureLedger
    """Calls and failures of this step, by source and cause."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A step's samples and where its time went (seconds, only what was waited for)."""

    samples: tuple[Sample, ...]
    seconds: dict[str, float]
    ledger: FailureLedger

    @property
    def scored(self) -> list[Sample]:
        """Return the samples that have a reward."""
        return [s for s in self.samples if s.reward is not None]
