"""Named terms that a sized amount consists of, and their sums. Knows no job."""

from collections.abc import Iterable, Sequence

from raggrpo_api.status import SizingTerm
from raggrpo_operator.core.spec.quantity import parse_quantity, readable

GIVEN = "given"
"""Name of the term that stands for the user's own value."""


def term(resource: str, name: str, amount: float, reason: str) -> SizingTerm:
    """Return one part of an amount, in bytes."""
    return SizingTerm(resource=resource, name=name, bytes=int(amount), reason=reason)


def total(terms: Iterable[SizingTerm]) -> int:
    """Return the sum in bytes, the user's own value left out."""
    return sum(each.bytes for each in terms if each.name != GIVEN)


def with_given(resource: str, terms: Sequence[SizingTerm], given: str) -> list[SizingTerm]:
    """Return the terms with the user's own value beside them, if there is one."""
    if not given:
        return list(terms)
    reason = f"spec.resources replaces the estimate of {readable(total(terms))}"
    return [*terms, term(resource, GIVEN, parse_quantity(given), reason)]
