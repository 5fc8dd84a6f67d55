"""`FailureLedger`: the failed calls of one step. Must not end a run."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.sample_failures import RewardCodeFailed, SampleFailed


@dataclass
class _Tally:
    calls: int = 0
    causes: Counter[FailureCause] = field(default_factory=Counter)
    examples: dict[FailureCause, str] = field(default_factory=dict)
    is_user_code: bool = False

    def exceeds(self, max_ratio: float) -> bool:
        return self.causes.total() > max_ratio * self.calls


class FailureLedger:
    """Counts the calls and failures of one step by source and cause, with an example of each."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def record_success(self, source: str) -> None:
        """Count a successful call to `source`, named as in SampleFailed."""
        self._tallies.setdefault(source, _Tally()).calls += 1

    def record_failure(self, sample: Hashable, failure: SampleFailed) -> None:
        """Count a failed call, with its sample as example."""
        tally = self._tallies.setdefault(failure.source, _Tally())
        tally.calls += 1
        tally.is_user_code = isinstance(failure, RewardCodeFailed)
        tally.causes[failure.cause] += 1
        tally.examples.setdefault(failure.cause, f"sample {sample}: {failure.detail}")

    def exceeds(self, max_ratio: float) -> bool:
        """Return whether the share of failed calls to any source is above `max_ratio`."""
        return any(tally.exceeds(max_ratio) for tally in self._tallies.values())

    def causes(self, source: str) -> dict[FailureCause, int]:
        """Return the number of failed calls to `source` by cause."""
        return dict(self._tallies.get(source, _Tally()).causes)

    def user_code_failure(self, max_ratio: float) -> str:
        """Return how a Python reward failed: with a wrong type, or more often than `max_ratio`.

        Returns "" if no Python reward did.
        """
        faults = (
            _sentence(source, tally)
            for source, tally in self._tallies.items()
            if tally.is_user_code
            and (FailureCause.WRONG_TYPE in tally.causes or tally.exceeds(max_ratio))
        )
        return "; ".join(faults)

    def message(self) -> str:
        """Return one clause per failing source: number of failures, causes, and an example."""
        return "; ".join(
            _sentence(source, tally) for source, tally in self._tallies.items() if tally.causes
        )


def _sentence(source: str, tally: _Tally) -> str:
    counts = tally.causes.most_common()
    listed = ", ".join(f"{cause} {count}" for cause, count in counts)
    failed, example = tally.causes.total(), tally.examples[counts[0][0]]
    return f"{source}: {failed} of {tally.calls} calls failed ({listed}), e.g. {example}"
