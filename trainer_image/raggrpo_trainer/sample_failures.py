"""Exceptions for failed calls of one sample. The other samples of the step are not affected."""

from collections.abc import Hashable
from typing import Protocol

from .call_failures import CallFailed, FailureCause


class SampleFailed(CallFailed):
    """A sample has no passages or no reward because a call failed."""

    def __init__(
        self, source: str, cause: FailureCause, detail: str, *, transient: bool = False
    ) -> None:
        super().__init__(cause, detail, transient=transient)
        self.source = source
        """Name of the called service or function: "endpoint actor-8b", "reward Python"."""

    def __str__(self) -> str:
        return f"{self.source}: {self.cause}: {self.detail}"


class CallRecorder(Protocol):
    """Counts calls to services and to user code."""

    def record_success(self, source: str) -> None:
        """Count a successful call to `source`, named as in SampleFailed."""

    def record_failure(self, sample: Hashable, failure: SampleFailed) -> None:
        """Count a failed call of a sample."""


def source_of(endpoint: str) -> str:
    """Return the `SampleFailed.source` of an endpoint."""
    return f"endpoint {endpoint}"


class RetrievalFailed(SampleFailed):
    """A retrieval endpoint returned no passages for a sample."""

    def __init__(
        self, endpoint: str, cause: FailureCause, detail: str, *, transient: bool = False
    ) -> None:
        super().__init__(source_of(endpoint), cause, detail, transient=transient)
        self.endpoint = endpoint


def source_of_reward(name: str) -> str:
    """Return the `SampleFailed.source` of a reward term."""
    return f"reward {name}"


class RewardFailed(SampleFailed):
    """A reward function returned no number for a sample."""

    def __init__(
        self, name: str, cause: FailureCause, detail: str, *, transient: bool = False
    ) -> None:
        super().__init__(source_of_reward(name), cause, detail, transient=transient)
        self.name = name


class RewardCodeFailed(RewardFailed):
    """A user's Python function returned no number for a sample."""
