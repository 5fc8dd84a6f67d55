"""`SpecRule`: a rule on specified values, evaluated by the operator and by the API server.

A `SpecRule` has a field, reason, message, remedy, predicate and CEL expression. The CRD's
`x-kubernetes-validations` are generated from all of these rules, so that `raggrpo validate` and
`kubectl apply` report a violation with the same message.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from raggrpo_operator.core.spec.violation import Reason, Violation

from . import cel
from .rule_input import RuleInput

Validation = dict[str, str]
"""One entry of `x-kubernetes-validations`."""
Expression = str | Callable[[], str]
"""A CEL expression; a function if it is expensive to build and only the CRD needs it."""


def always(_inputs: RuleInput) -> bool:
    """Return True, for rules that apply to all inputs."""
    return True


@dataclass(frozen=True, kw_only=True, eq=False)
class SpecRule:
    """A rule on the values of one place in the spec."""

    name: str
    is_met: Callable[[Any], bool]
    """Predicate that the value at each place must satisfy."""
    places: tuple[str, ...]
    """Paths such as `spec.env[]`; each value there is CEL's `self` and the predicate's argument."""
    field: str
    """Field that a violation names, relative to the place; empty: the place itself."""
    reason: Reason
    message: str
    remedy: str
    cel: tuple[Expression, ...]
    """Expressions that must all be true; each becomes an entry of the schema."""
    if_specified: tuple[str, ...] = ()
    """Fields, relative to the place, that must be specified for the CEL expression to apply.

    The API server evaluates only specified values, without presets and derived values.
    """
    values: Callable[[Any], object] | None = None
    """Function that returns the resolved values that the operator appends to the message.

    The API server shows the value of the field instead: it rejects a `messageExpression` with a
    number, since it cannot bound the length of the text.
    """
    applies: Callable[[RuleInput], bool] = always
    """Predicate on the inputs; the operator evaluates the rule only if it returns True."""
    as_specified: bool = False
    """Whether to evaluate the user's spec instead of the resolved spec."""

    def __call__(self, inputs: RuleInput) -> Iterator[Violation]:
        """Yield a violation for each value that does not meet the rule."""
        if not self.applies(inputs):
            return
        spec = inputs.job.spec if self.as_specified else inputs.spec
        for place in self.places:
            for path, value in values_at(spec, place):
                if not self.is_met(value):
                    target = f"{path}.{self.field}" if self.field else path
                    values = f" ({self.values(value)})" if self.values else ""
                    yield Violation(target, self.reason, self.message + values, self.remedy)

    def validations(self) -> Iterator[tuple[str, Validation]]:
        """Yield (place, entry of its `x-kubernetes-validations`)."""
        guard = self.if_specified
        for place in self.places:
            for expression in self.cel:
                condition = expression if isinstance(expression, str) else expression()
                rule = cel.if_specified(guard, condition) if guard else condition
                yield place, _entry(rule, f"{self.message} → {self.remedy}", self.field)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerRule:
    """A rule that only the API server evaluates."""

    place: str
    field: str
    cel: str
    message: str
    message_expression: str = ""
    """CEL expression for the message; `message` is the fallback if its evaluation fails."""

    def __call__(self, _inputs: RuleInput) -> Iterator[Violation]:
        """Yield nothing, because only the API server evaluates the rule."""
        yield from ()

    def validations(self) -> Iterator[tuple[str, Validation]]:
        """Yield (place, entry of its `x-kubernetes-validations`)."""
        entry = _entry(self.cel, self.message, self.field)
        if self.message_expression:
            entry["messageExpression"] = self.message_expression
        yield self.place, entry


def spec_rule(
    *places: str,
    reason: Reason,
    message: str,
    remedy: str,
    cel: Expression | tuple[Expression, ...],
    field: str = "",
    if_specified: tuple[str, ...] = (),
    values: Callable[[Any], object] | None = None,
    applies: Callable[[RuleInput], bool] = always,
    as_specified: bool = False,
) -> Callable[[Callable[[Any], bool]], SpecRule]:
    """Return a decorator that makes a predicate a `SpecRule` with these fields."""

    def decorate(is_met: Callable[[Any], bool]) -> SpecRule:
        return SpecRule(
            name=is_met.__name__,
            is_met=is_met,
            places=places,
            field=field,
            reason=reason,
            message=message,
            remedy=remedy,
            cel=cel if isinstance(cel, tuple) else (cel,),
            if_specified=if_specified,
            values=values,
            applies=applies,
            as_specified=as_specified,
        )

    return decorate


def values_at(spec: BaseModel, place: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for each value at a place such as `spec.env[]`; skip unset blocks."""
    root, *names = place.split(".")
    yield from _walk(spec, root, names)


def _walk(value: Any, path: str, names: list[str]) -> Iterator[tuple[str, Any]]:
    if not names:
        yield path, value
        return
    name, *rest = names
    below = getattr(value, to_snake(name.removesuffix("[]")))
    path = f"{path}.{name.removesuffix('[]')}"
    if name.endswith("[]"):
        for index, item in enumerate(below):
            yield from _walk(item, f"{path}[{index}]", rest)
    elif below is not None:
        yield from _walk(below, path, rest)


def _entry(rule: str, message: str, field: str) -> Validation:
    entry = {"rule": rule, "message": message, "reason": "FieldValueInvalid"}
    return entry | ({"fieldPath": f".{field}"} if field else {})
