"""CEL rules that freeze the values a checkpoint depends on once there has been an attempt."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from raggrpo_api.resume import RESUME_ENDPOINT_FIELDS, RESUME_FIELDS, RESUME_REWARD_FIELDS

from .rule import CelRule, given

_NO_ATTEMPT = "!has(oldSelf.status) || !has(oldSelf.status.attempt) || oldSelf.status.attempt == 0"
_REMEDY = (
    "cannot change once an attempt was made, since checkpoints depend on it: "
    "put it back, or make a new job with its own checkpoint.path"
)


def _same(path: str) -> str:
    """Return the condition that a value is unset before and after, or the same."""
    new, old = given(path), given(path, of="oldSelf")
    return f"(({new}) == ({old}) && (!({new}) || self.{path} == oldSelf.{path}))"


def _same_items(path: str, fields: str) -> str:
    """Return the condition that the items of a list agree in these fields, in order."""
    new, old = given(path), given(path, of="oldSelf")
    parts = [
        f"has(e.{name}) ? string(e.{name}) : ''" for name in map(to_camel, fields.split())
    ]  # fmt: skip
    items = f".map(e, [{', '.join(parts)}])"
    return f"(({new}) == ({old}) && (!({new}) || self.{path}{items} == oldSelf.{path}{items}))"


def _rules() -> Iterator[CelRule]:
    paths = ["preset", "checkpoint.path"]
    paths += [
        f"{block}.{to_camel(name)}"
        for block, fields in RESUME_FIELDS.items()
        for name in fields.split()
    ]
    for path in paths:
        yield CelRule(
            f"{_NO_ATTEMPT} || {_same(f'spec.{path}')}", f"spec.{path} {_REMEDY}", f".spec.{path}"
        )
    for path, fields in (
        ("retrieval.endpoints", RESUME_ENDPOINT_FIELDS),
        ("reward.functions", RESUME_REWARD_FIELDS),
    ):
        shown = ", ".join(map(to_camel, fields.split()))
        yield CelRule(
            f"{_NO_ATTEMPT} || {_same_items(f'spec.{path}', fields)}",
            f"spec.{path} ({shown}) {_REMEDY}",
            f".spec.{path}",
        )


FROZEN: tuple[CelRule, ...] = tuple(_rules())
"""Rules at the root, the only place where CEL can read the status."""
