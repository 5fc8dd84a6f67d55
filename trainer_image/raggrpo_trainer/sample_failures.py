"""Failures that affect a single sample, and their counts. Must not decide when a run ends."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum


class FailureCause(StrEnum):
    """Why a retrieval or reward call returned nothing usable."""

    TIMEOUT = "Timeout"
    CONNECTION_REFUSED = "ConnectionRefused"
    """Nothing listens there, or there is no route."""
    CONNECTION_LOST = "ConnectionLost"
    """The connection broke before the answer was complete."""
    DNS_FAILURE = "DnsFailure"
    TLS_FAILURE = "TlsFailure"
    HTTP_STATUS = "HttpStatus"
    SERVICE_ERROR = "ServiceError"
    """The answer came with a good status, but says that something went wrong."""
    BAD_JSON = "BadJson"
    MISSING_FIELD = "MissingField"
    """A field of the answer is missing or has the wrong type."""
    RAISED = "Raised"
    """A Python reward raised an exception."""
    NOT_A_NUMBER = "NotANumber"
    """A reward was NaN, infinite or not a number at all."""


class CallFailed(Exception):
    """One call failed; the caller adds the source as a SampleFailed."""

    def __init__(self, cause: FailureCause, detail: str, *, transient: bool = False) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail
        self.transient = transient
        """Whether a retry may succeed."""


class SampleFailed(CallFailed):
    """One sample lost its passages or its reward; the rest of the step continues."""

    def __init__(
        self, source: str, cause: FailureCause, detail: str, *, transient: bool = False
    ) -> None:
        super().__init__(cause, detail, transient=transient)
        self.source = source
        """What failed, for messages: "endpoint actor-8b", "reward Python"."""

    def __str__(self) -> str:
        return f"{self.source}: {self.cause}: {self.detail}"


def source_of(endpoint: str) -> str:
    """Return how an endpoint is named to people."""
    return f"endpoint {endpoint}"


class RetrievalFailed(SampleFailed):
    """A retrieval endpoint returned no passages for a sample."""

    def __init__(
        self, endpoint: str, cause: FailureCause, detail: str, *, transient: bool = False
    ) -> None:
        super().__init__(source_of(endpoint), cause, detail, transient=transient)
        self.endpoint = endpoint


class RewardFailed(SampleFailed):
    """A reward function returned no number for a sample."""

    def __init__(
        self, name: str, cause: FailureCause, detail: str, *, transient: bool = False
    ) -> None:
        super().__init__(f"reward {name}", cause, detail, transient=transient)
        self.name = name


@dataclass
class _Tally:
    calls: int = 0
    causes: Counter[FailureCause] = field(default_factory=Counter)
    examples: dict[FailureCause, str] = field(default_factory=dict)


class FailureLedger:
    """Counts one step's calls and failures by source and cause, keeping an example of each."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}
        self._samples: set[Hashable] = set()
        self._failed: set[Hashable] = set()

    def succeeded(self, sample: Hashable, source: str) -> None:
        """Count a successful call to `source` (named as in SampleFailed)."""
        self._samples.add(sample)
        self._tallies.setdefault(source, _Tally()).calls += 1

    def failed(self, sample: Hashable, failure: SampleFailed) -> None:
        """Count a failed call and its sample."""
        self._samples.add(sample)
        self._failed.add(sample)
        tally = self._tallies.setdefault(failure.source, _Tally())
        tally.calls += 1
        tally.causes[failure.cause] += 1
        tally.examples.setdefault(failure.cause, f"sample {sample}: {failure.detail}")

    @property
    def ratio(self) -> float:
        """Share of samples with a failed call; 0 if there were no samples."""
        return len(self._failed) / len(self._samples) if self._samples else 0.0

    def causes(self, source: str) -> dict[FailureCause, int]:
        """Return how many calls to `source` failed, by cause."""
        return dict(self._tallies.get(source, _Tally()).causes)

    def message(self) -> str:
        """Return a sentence per failing source: number of failures, causes and one example."""
        return "; ".join(
            _sentence(source, tally) for source, tally in self._tallies.items() if tally.causes
        )


def _sentence(source: str, tally: _Tally) -> str:
    counts = tally.causes.most_common()
    listed = ", ".join(f"{cause} {count}" for cause, count in counts)
    failed, example = tally.causes.total(), tally.examples[counts[0][0]]
    return f"{source}: {failed} of {tally.calls} calls failed ({listed}), e.g. {example}"
