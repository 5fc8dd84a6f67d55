"""`RuleInput` and `Rule`. Rules only compare values, which are resolved in advance."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.sizing import Sizing
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.spec.resolve import Origin
from raggrpo_operator.core.spec.violation import Reason, Severity, Violation


@dataclass(frozen=True)
class RuleInput:
    """A job and the values derived from it."""

    job: RagGrpoJob
    """The job as specified by the user."""
    spec: JobSpec
    """The resolved specification."""
    origins: Mapping[str, Origin]
    facts: Facts
    """Facts that preflight reported; empty before preflight, when rules on facts yield nothing."""
    sizing: Sizing
    in_pods: bool = True
    """Whether the job runs in pods; False for a local run, where a folder may replace a volume."""


Rule = Callable[[RuleInput], Iterator[Violation]]


def warning(path: str, reason: Reason, message: str, remedy: str) -> Violation:
    """Return a violation that does not stop the job."""
    return Violation(path, reason, message, remedy, Severity.WARNING)
