"""The rules on changes of values that checkpoints depend on, after the first attempt.

Values of class Model never change; values of class Optimization change only while no attempt is
running. Only the API server can evaluate these rules, because they read the previous spec.
"""

from collections.abc import Iterator, Mapping

from pydantic.alias_generators import to_camel

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import MODEL, OPTIMIZATION, ChangeClass, fields_of_class
from raggrpo_api.spec.retrieval import ResponseMapping, RetrievalEndpoint
from raggrpo_api.spec.reward import JudgeSpec, RewardFunction
from raggrpo_api.status.conditions import Phase
from raggrpo_api.trainer.resume import BLOCKS, FREE_JSON_FIELDS, LISTS
from raggrpo_operator.core.rules.base.cel import is_one_of, optional, specified
from raggrpo_operator.core.rules.base.spec_rule import ServerRule

_NOT_COMPARED = LISTS | FREE_JSON_FIELDS
"""Fields that need other conditions, or that CEL cannot read."""
_NO_ATTEMPT = f"{optional('status.attempt', 'oldSelf')}.orValue(0) == 0"
_STOPPED_PHASES = tuple(map(str, (Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED, Phase.INVALID)))
_IS_STOPPED = (
    "oldSelf.?status.?attempts[?0].?cause.hasValue() && "
    f"{optional('status.phase', 'oldSelf')}.orValue('') in {list(_STOPPED_PHASES)}"
)
"""Condition that no attempt is running or about to start; `cause` is unset while one is running."""


def _alias(name: str, block: str = "") -> str:
    return f"{block}{to_camel(name)}"


def _item_fields(model: type[ApiModel], kind: ChangeClass, block: str = "") -> Iterator[str]:
    """Yield the paths of an item's fields with change class `kind`, except free-form JSON.

    CEL cannot read free-form JSON; the trainer compares it on resume.
    """
    for name in fields_of_class(model, kind):
        if name == "response":
            yield from (_alias(each, "response.") for each in ResponseMapping.model_fields)
        elif name == "judge":
            yield from _item_fields(JudgeSpec, kind, "judge.")
        elif name not in FREE_JSON_FIELDS:
            yield _alias(name, block)


ITEM_MODELS: Mapping[str, type[ApiModel]] = {
    "retrieval.endpoints": RetrievalEndpoint,
    "reward.functions": RewardFunction,
}
"""Model of the items of each list."""


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
    """Return a CEL expression for the last decay step, or for 0 if that step depends on epochs."""
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


def _field_paths(kind: ChangeClass) -> Iterator[str]:
    """Yield the paths of the fields of a class, except fields of list items and free-form JSON."""
    for block, model in BLOCKS.items():
        names = fields_of_class(model, kind)
        yield from (f"{block}.{to_camel(name)}" for name in names if name not in _NOT_COMPARED)


def _values(kind: ChangeClass) -> Iterator[tuple[str, str]]:
    """Yield (text that names a field, CEL condition that the field is unchanged)."""
    paths = [*_field_paths(kind)]
    if kind is MODEL:
        paths = ["preset", "checkpoint.path", *paths]
    for path in paths:
        if path != _DECAY:
            yield f"spec.{path}", _same(f"spec.{path}")
    for path, model in ITEM_MODELS.items():
        fields = tuple(_item_fields(model, kind))
        yield f"spec.{path} ({', '.join(fields)})", _same_items(f"spec.{path}", fields)
    if kind is OPTIMIZATION:
        yield _DECAY_FIELDS, _same_decay()


_EQUAL = f"self.spec == oldSelf.spec && {_same_items('spec.retrieval.endpoints', ('name',))}"
"""Condition that the spec is unchanged; `==` ignores the order of endpoints, a keyed list."""


def _unchanged(kind: ChangeClass, exception: str, message: str, remedy: str) -> ServerRule:
    """Return the rule that fields of a class are unchanged unless `exception` is true.

    One rule covers all fields of a class: on every status write, an equal spec short-circuits the
    other checks. The rule is at the root of the schema, the only place where CEL can read the
    status.
    """
    values = tuple(_values(kind))
    unchanged = " && ".join(same for _, same in values)
    changed = " + ".join(f"({same} ? '' : '{what}; ')" for what, same in values)
    return ServerRule(
        place="",
        field="spec",
        cel=f"{exception} || {_EQUAL} || ({unchanged})",
        message=message + remedy,
        message_expression=f"'{message}' + {changed} + '{remedy}'",
    )


model_is_frozen = _unchanged(
    MODEL,
    _NO_ATTEMPT,
    "cannot change after the first attempt, because checkpoints depend on it: ",
    "revert the change, or create a new job with its own checkpoint.path",
)
optimization_is_frozen_while_running = _unchanged(
    OPTIMIZATION,
    f"{_NO_ATTEMPT} || ({_IS_STOPPED})",
    "cannot change while the job is running: ",
    "set suspend: true, wait for phase Suspended, then change it; steps are retained",
)
