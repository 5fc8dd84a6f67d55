"""The rule that makes values immutable after the first attempt if checkpoints depend on them.

Only the API server can evaluate this rule, because the rule reads the previous spec.
"""

from collections.abc import Iterator, Mapping

from pydantic.alias_generators import to_camel

from raggrpo_api.spec.retrieval import ResponseMapping
from raggrpo_api.trainer.resume import (
    RESUME_CALL_FIELDS,
    RESUME_ENDPOINT_FIELDS,
    RESUME_FIELDS,
    RESUME_JUDGE_FIELDS,
    RESUME_REWARD_FIELDS,
)
from raggrpo_operator.core.rules.base.cel import is_one_of, optional, specified
from raggrpo_operator.core.rules.base.spec_rule import ServerRule

_NO_ATTEMPT = f"{optional('status.attempt', 'oldSelf')}.orValue(0) == 0"
_FROZEN = "cannot change after the first attempt, because checkpoints depend on it: "
_REMEDY = "revert the change, or create a new job with its own checkpoint.path"


def _names(fields: str, block: str = "") -> tuple[str, ...]:
    return tuple(f"{block}{to_camel(name)}" for name in fields.split())


ITEMS: Mapping[str, tuple[str, ...]] = {
    "retrieval.endpoints": (
        *_names(RESUME_ENDPOINT_FIELDS),
        *(name for name in _names(RESUME_CALL_FIELDS) if name != "response"),
        *_names(" ".join(ResponseMapping.model_fields), "response."),
    ),
    "reward.functions": (
        *_names(RESUME_REWARD_FIELDS),
        *_names(RESUME_JUDGE_FIELDS, "judge."),
    ),
}
"""Frozen fields of list items, by list.

Free-form JSON is not included, because CEL cannot read it; the trainer compares it on resume.
"""


def _same(path: str, of_value: str = "") -> str:
    """Return a CEL condition that a field is unchanged, or unset in both the old and new spec."""
    new, old = specified(path), specified(path, of="oldSelf")
    same = f"self.{path}{of_value} == oldSelf.{path}{of_value}"
    return f"({new} ? {old} && {same} : !{old})"


def _same_items(path: str, fields: tuple[str, ...]) -> str:
    """Return a CEL condition that `fields` of all items of a list, in order, are unchanged."""
    texts = (f"({specified(name, of='e')} ? string(e.{name}) : '')" for name in fields)
    return _same(path, f".map(e, [{', '.join(texts)}])")


_DECAY = "training.decaySteps"
_TOTAL = "training.totalSteps"
_DECAY_FIELDS = (
    "spec.training.decaySteps, or totalSteps or epochs that it defaults to (to continue after "
    "the last step, set decaySteps to the old totalSteps)"
)


def _decay_end(of: str) -> str:
    """Return a CEL expression for the last decay step, or for 0 if it depends on epochs."""
    decay, total = (f"{optional(f'spec.{path}', of)}.orValue(0)" for path in (_DECAY, _TOTAL))
    return f"({decay} > 0 ? {decay} : {total})"


def _same_decay() -> str:
    """Return a CEL condition that the learning rate decay ends at the same step as before.

    Setting decaySteps to the old totalSteps counts as unchanged, so that users can continue a run
    after its learning rate has decayed. Without decay, decaySteps itself must be unchanged.
    """
    decays = is_one_of("spec.training.learningRateSchedule", "Linear", "Cosine")
    ends = f"{_decay_end('self')} == {_decay_end('oldSelf')}"
    by_epochs = f"({_decay_end('self')} != 0 || {_same('spec.training.epochs')})"
    return f"({decays} ? {ends} && {by_epochs} : {_same(f'spec.{_DECAY}')})"


def _values() -> Iterator[tuple[str, str]]:
    """Yield (text that names a frozen field, CEL condition that the field is unchanged)."""
    paths = ["preset", "checkpoint.path"]
    paths += [
        f"{block}.{to_camel(name)}"
        for block, fields in RESUME_FIELDS.items()
        for name in fields.split()
    ]
    paths.remove(_DECAY)
    for path in paths:
        yield f"spec.{path}", _same(f"spec.{path}")
    for path, fields in ITEMS.items():
        yield f"spec.{path} ({', '.join(fields)})", _same_items(f"spec.{path}", fields)
    yield _DECAY_FIELDS, _same_decay()


_EQUAL = f"self.spec == oldSelf.spec && {_same_items('spec.retrieval.endpoints', ('name',))}"
"""Condition that the spec is unchanged; `==` ignores the order of endpoints, a keyed list."""
_VALUES = tuple(_values())
_UNCHANGED = " && ".join(same for _, same in _VALUES)
_CHANGED = " + ".join(f"({same} ? '' : '{what}; ')" for what, same in _VALUES)

spec_is_frozen = ServerRule(
    # One rule for all fields: on every status write, an equal spec short-circuits the other checks.
    place="",
    field="spec",
    cel=f"{_NO_ATTEMPT} || {_EQUAL} || ({_UNCHANGED})",
    message=_FROZEN + _REMEDY,
    message_expression=f"'{_FROZEN}' + {_CHANGED} + '{_REMEDY}'",
)
"""The rule is at the root of the schema, the only place where CEL can read the status."""
