"""CEL rules that freeze the values a checkpoint depends on once there has been an attempt."""

from collections.abc import Iterator, Mapping

from pydantic.alias_generators import to_camel

from raggrpo_api.resume import (
    RESUME_CALL_FIELDS,
    RESUME_ENDPOINT_FIELDS,
    RESUME_FIELDS,
    RESUME_JUDGE_FIELDS,
    RESUME_REWARD_FIELDS,
)
from raggrpo_api.spec.retrieval import ResponseMapping

from .rule import CelRule, given, is_one_of

_NO_ATTEMPT = "!has(oldSelf.status) || !has(oldSelf.status.attempt) || oldSelf.status.attempt == 0"
_REMEDY = (
    "cannot change once an attempt was made, since checkpoints depend on it: "
    "put it back, or make a new job with its own checkpoint.path"
)


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


def _same(path: str) -> str:
    """Return the condition that a value is unset before and after, or the same."""
    new, old = given(path), given(path, of="oldSelf")
    return f"(({new}) == ({old}) && (!({new}) || self.{path} == oldSelf.{path}))"


def _same_items(path: str, fields: tuple[str, ...]) -> str:
    """Return the condition that the items of a list agree in these fields, in order."""
    new, old = given(path), given(path, of="oldSelf")
    parts = [f"{given(name, of='e')} ? string(e.{name}) : ''" for name in fields]
    items = f".map(e, [{', '.join(parts)}])"
    return f"(({new}) == ({old}) && (!({new}) || self.{path}{items} == oldSelf.{path}{items}))"


_DECAY, _TOTAL = "training.decaySteps", "training.totalSteps"


def _decay_end(of: str) -> str:
    """Return an expression for the last step of the learning rate's fall; 0: epochs tell it."""
    decay, total = f"{of}.spec.{_DECAY}", f"{of}.spec.{_TOTAL}"
    has_decay, has_total = (given(f"spec.{path}", of=of) for path in (_DECAY, _TOTAL))
    return f"(({has_decay}) && {decay} > 0 ? {decay} : ({has_total}) ? {total} : 0)"


def _same_decay() -> str:
    """Return the condition that the learning rate falls as before, where it falls.

    Writing down the step that totalSteps meant so far is no change: that is how a run whose rate
    has fallen is continued.
    """
    falls = is_one_of("spec.training.learningRateSchedule", "Linear", "Cosine")
    ends = f"{_decay_end('self')} == {_decay_end('oldSelf')}"
    by_epochs = f"({_decay_end('self')} != 0 || {_same('spec.training.epochs')})"
    return f"({falls} ? {ends} && {by_epochs} : {_same(f'spec.{_DECAY}')})"


def _rules() -> Iterator[CelRule]:
    paths = ["preset", "checkpoint.path"]
    paths += [
        f"{block}.{to_camel(name)}"
        for block, fields in RESUME_FIELDS.items()
        for name in fields.split()
    ]
    paths.remove(_DECAY)
    yield CelRule(
        f"{_NO_ATTEMPT} || {_same_decay()}",
        "spec.training.decaySteps, or what stands for it, totalSteps or epochs, cannot change once "
        "an attempt was made, since the learning rate falls by it: to go on after the last step, "
        "write the old totalSteps into decaySteps; or make a new job with its own checkpoint.path",
        f".spec.{_DECAY}",
    )
    for path in paths:
        yield CelRule(
            f"{_NO_ATTEMPT} || {_same(f'spec.{path}')}", f"spec.{path} {_REMEDY}", f".spec.{path}"
        )
    for path, fields in ITEMS.items():
        yield CelRule(
            f"{_NO_ATTEMPT} || {_same_items(f'spec.{path}', fields)}",
            f"spec.{path} ({', '.join(fields)}) {_REMEDY}",
            f".spec.{path}",
        )


FROZEN: tuple[CelRule, ...] = tuple(_rules())
"""Rules at the root, the only place where CEL can read the status."""
