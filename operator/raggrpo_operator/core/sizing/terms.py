"""Named terms of a computed amount, and their sums."""

from collections.abc import Iterable, Sequence

from raggrpo_api.status.sizing import SizingTerm
from raggrpo_operator.core.spec.quantity import format_size, parse_quantity

SPECIFIED = "given"
"""Name of the term with the specified value."""


def term(resource: str, name: str, amount: float, reason: str) -> SizingTerm:
    """Return a named term of a resource, with `amount` in bytes."""
    return SizingTerm(resource=resource, name=name, bytes=int(amount), reason=reason)


def total(terms: Iterable[SizingTerm]) -> int:
    """Return the sum of terms in bytes, without the specified value."""
    return sum(each.bytes for each in terms if each.name != SPECIFIED)


def with_specified(resource: str, terms: Sequence[SizingTerm], specified: str) -> list[SizingTerm]:
    """Return the terms, followed by a term for the specified value, if any."""
    if not specified:
        return list(terms)
    reason = f"specified in spec.resources instead of the estimate of {format_size(total(terms))}"
    return [*terms, term(resource, SPECIFIED, parse_quantity(specified), reason)]
