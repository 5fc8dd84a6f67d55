"""CEL rules that freeze the values a checkpoint depends on once there has been an attempt."""

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

from .rule import CelRule, given, is_one_of, optional

_NO_ATTEMPT = f"{optional('status.attempt', 'oldSelf')}.orValue(0) == 0"
_FROZEN = "cannot change once an attempt was made, since checkpoints depend on it: "
_REMEDY = "put it back, or make a new job with its own checkpoint.path"


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
"""Fields of list items; free JSON, which CEL cannot read, is left to the trainer's comparison."""


def _same(path: str, of_value: str = "") -> str:
    """Return the condition that a value is unset before and after, or the same."""
    new, old = given(path), given(path, of="oldSelf")
    same = f"self.{path}{of_value} == oldSelf.{path}{of_value}"
    return f"({new} ? {old} && {same} : !{old})"


def _same_items(path: str, fields: tuple[str, ...]) -> str:
    """Return the condition that the items of a list agree in these fields, in order."""
    texts = (f"({given(name, of='e')} ? string(e.{name}) : '')" for name in fields)
    return _same(path, f".map(e, [{', '.join(texts)}])")


_DECAY, _TOTAL = "training.decaySteps", "training.totalSteps"
_FALL = (
    "spec.training.decaySteps, or totalSteps or epochs where they stand for it (to go on after "
    "the last step, write the old totalSteps into decaySteps)"
)


def _decay_end(of: str) -> str:
    """Return an expression for the last step of the learning rate's fall; 0: epochs tell it."""
    decay, total = (f"{optional(f'spec.{path}', of)}.orValue(0)" for path in (_DECAY, _TOTAL))
    return f"({decay} > 0 ? {decay} : {total})"


def _same_decay() -> str:
    """Return the condition that the learning rate falls as before, where it falls.

    Writing down the step that totalSteps meant so far is no change: that is how a run whose rate
    has fallen is continued.
    """
    falls = is_one_of("spec.training.learningRateSchedule", "Linear", "Cosine")
    ends = f"{_decay_end('self')} == {_decay_end('oldSelf')}"
    by_epochs = f"({_decay_end('self')} != 0 || {_same('spec.training.epochs')})"
    return f"({falls} ? {ends} && {by_epochs} : {_same(f'spec.{_DECAY}')})"


def _values() -> Iterator[tuple[str, str]]:
    """Yield what is frozen, and the condition that it is the same."""
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
    yield _FALL, _same_decay()


_AS_IT_WAS = f"self.spec == oldSelf.spec && {_same_items('spec.retrieval.endpoints', ('name',))}"
"""Equality does not see the order of a list whose items have a key."""
_VALUES = tuple(_values())
_UNCHANGED = " && ".join(same for _, same in _VALUES)
_CHANGED = " + ".join(f"({same} ? '' : '{what}; ')" for what, same in _VALUES)

FROZEN = CelRule(
    # One rule, which an equal spec ends at once: it runs at each write of the status.
    f"{_NO_ATTEMPT} || {_AS_IT_WAS} || ({_UNCHANGED})",
    _FROZEN + _REMEDY,
    ".spec",
    message_expression=f"'{_FROZEN}' + {_CHANGED} + '{_REMEDY}'",
)
"""It stands at the root, the only place where CEL can read the status."""
