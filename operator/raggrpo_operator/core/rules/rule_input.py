"""What a rule looks at. Everything is resolved beforehand, so that rules only compare."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from raggrpo_api.job import JobSpec, RagGrpoJob
from raggrpo_api.preflight import Facts
from raggrpo_api.status import Sizing
from raggrpo_operator.core.spec.resolve import Origin
from raggrpo_operator.core.spec.violation import Reason, Severity, Violation


@dataclass(frozen=True)
class RuleInput:
    """One job, seen whole."""

    job: RagGrpoJob
    """What the user gave."""
    spec: JobSpec
    """The resolved specification."""
    origins: Mapping[str, Origin]
    facts: Facts
    """Zero and empty where preflight has not looked yet; such rules then stay silent."""
    sizing: Sizing


Rule = Callable[[RuleInput], Iterator[Violation]]


def warning(path: str, reason: Reason, message: str, remedy: str) -> Violation:
    """Return advice that does not stop the job."""
    return Violation(path, reason, message, remedy, Severity.WARNING)
