"""What a rule sees. Everything is resolved beforehand, so that rules only compare values."""

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
    """Everything about one job."""

    job: RagGrpoJob
    """The job as the user wrote it."""
    spec: JobSpec
    """The resolved specification."""
    origins: Mapping[str, Origin]
    facts: Facts
    """Zeros and empty strings until preflight has run; rules on facts then yield nothing."""
    sizing: Sizing
    in_pods: bool = True
    """False on one machine, where folders anywhere stand in for volumes."""


Rule = Callable[[RuleInput], Iterator[Violation]]


def warning(path: str, reason: Reason, message: str, remedy: str) -> Violation:
    """Return a violation that does not stop the job."""
    return Violation(path, reason, message, remedy, Severity.WARNING)
