"""The list of reported cases: inputs that broke trainers, services and operators elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Check = Callable[..., None]
"""Check of a case: called with an empty folder, and with the input if the case has several."""


@dataclass(frozen=True)
class ReportedCase:
    """One input with the behavior that `check` asserts."""

    id: str
    fault: str
    """The class of fault, which further inputs share."""
    check: Callable[[Path], None]


CASES: list[ReportedCase] = []
"""All cases, in the order in which their modules register them."""


def case(case_id: str, *, fault: str, inputs: Sequence[Any] = ()) -> Callable[[Check], Check]:
    """Register the decorated check as `case_id`, once for each of `inputs` if there are any."""

    def register(check: Check) -> Check:
        if not inputs:
            CASES.append(ReportedCase(case_id, fault, check))
        for number, given in enumerate(inputs, 1):
            bound = _with_input(check, given)
            CASES.append(ReportedCase(f"{case_id}-{number}", fault, bound))
        return check

    return register


def _with_input(check: Check, given: Any) -> Callable[[Path], None]:
    return lambda folder: check(folder, given)
