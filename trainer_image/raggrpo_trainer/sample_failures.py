"""Failures that concern one sample, and their count: what ends a run is decided elsewhere (A13)."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum


class FailureCause(StrEnum):
    """Why a retrieval or reward call gave nothing usable."""

    TIMEOUT = "Timeout"
    CONNECTION_REFUSED = "ConnectionRefused"
    """Nobody listens there, or no route leads there."""
    CONNECTION_LOST = "ConnectionLost"
    """The connection broke before the answer was complete."""
    DNS_FAILURE = "DnsFailure"
    TLS_FAILURE = "TlsFailure"
    HTTP_STATUS = "HttpStatus"
    BAD_JSON = "BadJson"
    MISSING_FIELD = "MissingField"
    """A field of the answer is absent or of the wrong type."""
    CIRCUIT_OPEN = "CircuitOpen"
    """Not asked: the service has just failed many times in a row."""
    RAISED = "Raised"
    """A Python reward raised an exception."""
    NOT_A_NUMBER = "NotANumber"
    """A reward was NaN, infinite or no number at all."""


class CallFailed(Exception):
    """One call failed; whoever made it adds whose call it was."""

    def __init__(self, cause: FailureCause, detail: str, *, transient: bool = False) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail
        self.transient = transient
        """Whether the same call may succeed a little later."""


class SampleFailed(CallFailed):
    """One sample lost its passages or its reward; the rest of the step goes on."""

    def __init__(self, source: str, cause: FailureCause, detail: str) -> None:
        super().__init__(cause, detail)
        self.source = source
        """What failed, in words: "endpoint actor-8b", "reward Python"."""

    def __str__(self) -> str:
        return f"{self.source}: {self.cause}: {self.detail}"


class RetrievalFailed(SampleFailed):
    """A retrieval endpoint gave no passages for a sample."""

    def __init__(self, endpoint: str, cause: FailureCause, detail: str) -> None:
        super().__init__(f"endpoint {endpoint}", cause, detail)
        self.endpoint = endpoint


class RewardFailed(SampleFailed):
    """A reward function gave no number for a sample."""

    def __init__(self, name: str, cause: FailureCause, detail: str) -> None:
        super().__init__(f"reward {name}", cause, detail)
        self.name = name


@dataclass
class _Tally:
    calls: int = 0
    causes: Counter[FailureCause] = field(default_factory=Counter)
    examples: dict[FailureCause, str] = field(default_factory=dict)


class FailureLedger:
    """Counts calls and failures of one step by source and cause, with an example of each."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}
        self._samples: set[Hashable] = set()
        self._failed: set[Hashable] = set()

    def succeeded(self, sample: Hashable, source: str) -> None:
        """Count a call of `source` (worded as in SampleFailed) that served its sample."""
        self._samples.add(sample)
        self._tallies.setdefault(source, _Tally()).calls += 1

    def failed(self, sample: Hashable, failure: SampleFailed) -> None:
        """Count a call that left its sample without an answer."""
        self._samples.add(sample)
        self._failed.add(sample)
        tally = self._tallies.setdefault(failure.source, _Tally())
        tally.calls += 1
        tally.causes[failure.cause] += 1
        tally.examples.setdefault(failure.cause, f"sample {sample}: {failure.detail}")

    @property
    def ratio(self) -> float:
        """Share of the samples seen that lost a call; 0 when none was seen."""
        return len(self._failed) / len(self._samples) if self._samples else 0.0

    def causes(self, source: str) -> dict[FailureCause, int]:
        """Return how many calls of `source` failed, by cause."""
        return dict(self._tallies.get(source, _Tally()).causes)

    def message(self) -> str:
        """Return a sentence per failing source: how many failed, of what, one example."""
        return "; ".join(
            _sentence(source, tally) for source, tally in self._tallies.items() if tally.causes
        )


def _sentence(source: str, tally: _Tally) -> str:
    counts = tally.causes.most_common()
    # A call that was not made says nothing about why: prefer any other example.
    telling = next((c for c, _ in counts if c is not FailureCause.CIRCUIT_OPEN), counts[0][0])
    listed = ", ".join(f"{cause} {count}" for cause, count in counts)
    failed = tally.causes.total()
    return (
        f"{source}: {failed} of {tally.calls} calls failed ({listed}), {_example(tally, telling)}"
    )


def _example(tally: _Tally, cause: FailureCause) -> str:
    return f"e.g. {tally.examples[cause]}"
