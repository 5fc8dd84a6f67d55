"""The named terms that make up a sized amount, and their sums. Knows nothing of jobs."""

from collections.abc import Iterable, Sequence

from raggrpo_api.status.sizing import SizingTerm
from raggrpo_operator.core.spec.quantity import format_size, parse_quantity

SPECIFIED = "given"
"""Name of the term that holds the value the user gave."""


def term(resource: str, name: str, amount: float, reason: str) -> SizingTerm:
    """Return one term of an amount, in bytes."""
    return SizingTerm(resource=resource, name=name, bytes=int(amount), reason=reason)


def total(terms: Iterable[SizingTerm]) -> int:
    """Return the sum in bytes, without the value that the user gave."""
    return sum(each.bytes for each in terms if each.name != SPECIFIED)


def with_specified(resource: str, terms: Sequence[SizingTerm], given: str) -> list[SizingTerm]:
    """Return the terms, followed by the value that the user gave, if any."""
    if not given:
        return list(terms)
    reason = f"spec.resources replaces the estimate of {format_size(total(terms))}"
    return [*terms, term(resource, SPECIFIED, parse_quantity(given), reason)]
