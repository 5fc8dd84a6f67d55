"""Record the calls of one trajectory and return them as rows. Pure.

A turn is a prompt and the completion that an engine sampled for it. A prompt that starts with the
text of a recorded turn continues it with the tokens as sampled; any other prompt starts a row. So
no sampled token is tokenized again, and every row is what an engine processed.
"""

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import count
from typing import Any

SEED_BITS = 63
MAX_NOTES = 100
"""Different notes of a trajectory; an application may send any number of unknown parameters."""
NOT_PARSED = "not parsed"
"""Start of the note on a reply that the parser rejected."""


class TrajectoryCause(StrEnum):
    """Why a trajectory failed, the most important cause first."""

    MISSING_LOGPROBS = "MissingLogprobs"
    """A completion had no finite logprob for each token."""
    MAX_TURNS = "MaxTurns"
    CONTEXT_LENGTH = "ContextLength"
    FORWARD_FAILED = "ForwardFailed"
    """A call of a model that is not trained failed at its endpoint."""
    FORWARD_TIMEOUT = "ForwardTimeout"
    """An endpoint did not answer a call of a model that is not trained in time."""
    REQUEST_REJECTED = "RequestRejected"
    """The gateway rejected a request, which was malformed or for an endpoint it does not have."""


@dataclass(frozen=True, slots=True)
class TrajectoryFailure:
    """The cause of a failed trajectory.

    The application may have handled the error that it received. So only a fatal failure fails a
    trajectory whose application returned an answer.
    """

    cause: TrajectoryCause
    detail: str

    @property
    def is_fatal(self) -> bool:
        """Whether the trajectory cannot be trained on."""
        return self.cause is TrajectoryCause.MISSING_LOGPROBS


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a turn."""

    text: str
    ids: tuple[int, ...]
    parent: "Turn | None" = None
    """The turn whose tokens `ids` starts with, completion included."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A prompt and its sampled completion of at least one token."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    content: str
    """The text of the completion, without the token that ended it."""
    end: str
    """The text of the token that ended the completion; empty if it was cut off."""
    message: Mapping[str, Any]
    """The message that the application received."""
    policy_version: int

    @property
    def text(self) -> str:
        """The text of prompt and completion."""
        return self.prompt.text + self.content + self.end

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens of prompt and completion."""
        return self.prompt.ids + self.token_ids

    def path(self) -> list["Turn"]:
        """Return the turns that this one continues, from the first to this one."""
        turn: Turn | None = self
        turns = []
        while turn is not None:
            turns.append(turn)
            turn = turn.prompt.parent
        return turns[::-1]


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens that an engine processed as one sequence."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """The tokens after the prompt; the first and the last are sampled."""
    sampled: tuple[bool, ...]
    """Whether each token is trained: sampled, and not trained in another row."""
    logprobs: tuple[float, ...]
    """Logprobs of the trained tokens, and 0 for the others."""


@dataclass(slots=True)
class Trajectory:
    """The calls of one application for one sample."""

    key: str
    seed_key: tuple[int, ...]
    """Run seed, step, prompt and sample."""
    temperature: float
    top_p: float
    turns: list[Turn] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    """Number of occurrences of each event that the log reports, such as an ignored parameter."""
    affinity: int | None = None
    """Trajectories with equal numbers use the same engine."""
    untrained_calls: Counter[str] = field(default_factory=Counter)
    """Number of calls of each model that is not trained."""
    num_calls: int = 0
    """Number of requested completions, finished or not."""
    is_abandoned: bool = False
    """Whether a client disconnected before a completion, and did not request it again."""
    _failures: dict[TrajectoryCause, str] = field(default_factory=dict)
    _equal_prompts: dict[tuple[int, ...], Iterator[int]] = field(default_factory=dict)
    """Counts the completions of each prompt."""

    @property
    def failure(self) -> TrajectoryFailure | None:
        """The most important failure, or None. See `TrajectoryFailure.is_fatal`."""
        causes = (cause for cause in TrajectoryCause if cause in self._failures)
        cause = next(causes, None)
        return None if cause is None else TrajectoryFailure(cause, self._failures[cause])

    def record_failure(self, cause: TrajectoryCause, detail: str) -> None:
        """Record the first failure of each cause."""
        self._failures.setdefault(cause, detail)

    def note(self, text: str) -> None:
        """Count an event."""
        if text in self.notes or len(self.notes) < MAX_NOTES:
            self.notes[text] += 1

    def count_untrained(self, model: str) -> None:
        """Count a call of a model that is not trained."""
        if model in self.untrained_calls or len(self.untrained_calls) < MAX_NOTES:
            self.untrained_calls[model] += 1

    def seed(self, prompt_ids: tuple[int, ...]) -> int:
        """Return the seed of the next completion of a prompt.

        It depends on the prompt and on the number of earlier equal prompts, not on the order in
        which calls arrive: applications may call in parallel.
        """
        nth = next(self._equal_prompts.setdefault(prompt_ids, count()))
        digest = hashlib.sha256(repr((self.seed_key, nth)).encode())
        digest.update(struct.pack(f"={len(prompt_ids)}q", *prompt_ids))
        return int.from_bytes(digest.digest()[:8]) >> (64 - SEED_BITS)

    def prompt(
        self,
        text: str,
        first_ids: Callable[[str], tuple[int, ...]],
        next_ids: Callable[[str, str], tuple[int, ...]],
    ) -> Prompt:
        """Return the tokens of a text: as sampled where it continues a turn.

        `first_ids` tokenizes a whole text; `next_ids` tokenizes the text after an end token whose
        text is its first argument, or after another token if that is empty.
        """
        recorded = list(self._recorded(text))
        longest = max((each.order for each in recorded), default=None)
        equal = [each for each in recorded if each.order == longest]
        best = max(equal, key=lambda each: (each.ids, each.end), default=None)
        if best is None:
            return Prompt(text, first_ids(text))
        rest = next_ids(best.end, text[best.length :])
        return Prompt(text, best.ids + rest, best.turn if best.is_whole else None)

    def recorded_length(self, text: str) -> int:
        """Return the length of the longest recorded text that `text` starts with."""
        return max((each.length for each in self._recorded(text)), default=0)

    def rows(self) -> list[Row]:
        """Return one row for each turn that no other turn continues.

        Rows with a common turn train it once, in the longest of them. The order of turns does not
        matter.
        """
        continued = {id(turn.prompt.parent) for turn in self.turns}
        leaves = [turn for turn in self.turns if id(turn) not in continued]
        trained: set[int] = set()
        return [_row(leaf, trained) for leaf in sorted(leaves, key=_row_order)]

    def _recorded(self, text: str) -> Iterator["_Recorded"]:
        for turn in self.turns:
            start = len(turn.prompt.text)
            if not (text.startswith(turn.prompt.text) and text.startswith(turn.content, start)):
                continue
            length = start + len(turn.content)
            if turn.end and text.startswith(turn.end, length):
                yield _Recorded(length + len(turn.end), True, turn.end, turn)
            else:  # if the turn has an end, the template ends completions with another token
                yield _Recorded(length, not turn.end, "", turn)


@dataclass(frozen=True)
class _Recorded:
    """A recorded text that a prompt starts with."""

    length: int
    is_whole: bool
    """Whether `ids` are all tokens of the turn."""
    end: str
    turn: Turn

    @property
    def order(self) -> tuple[int, bool]:
        """Of several recorded texts, the greatest is used."""
        return self.length, self.is_whole

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the text."""
        return self.turn.ids if self.is_whole else self.turn.ids[:-1]


def are_complete(token_ids: Sequence[int], logprobs: Sequence[float]) -> bool:
    """Return whether there is a finite logprob for each token."""
    return len(token_ids) == len(logprobs) and all(map(math.isfinite, logprobs))


def _row_order(leaf: Turn) -> tuple[int, tuple[int, ...]]:
    return -len(leaf.ids), leaf.ids


def _row(leaf: Turn, trained: set[int]) -> Row:
    """Return the row that ends with `leaf`; add its turns to `trained`."""
    ids = leaf.ids
    logprobs = [0.0] * len(ids)
    sampled = [False] * len(ids)
    for turn in leaf.path():
        if id(turn) not in trained:
            trained.add(id(turn))
            start = len(turn.prompt.ids)
            sampled[start : start + len(turn.token_ids)] = [True] * len(turn.token_ids)
            logprobs[start : start + len(turn.token_ids)] = turn.logprobs
    first = sampled.index(True)
    return Row(ids[:first], ids[first:], tuple(sampled[first:]), tuple(logprobs[first:]))
