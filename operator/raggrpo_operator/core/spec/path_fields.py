"""Every file-system path of a specification with its place. Looks at no file system."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from raggrpo_api.base import ApiModel, PathMarker


def path_fields(model: ApiModel, prefix: str = "spec") -> Iterator[tuple[str, str]]:
    """Yield (place, path) for every field that is marked as a path and not empty."""
    for name, alias, marked in _fields(type(model)):
        place = f"{prefix}.{alias}"
        value = getattr(model, name)
        items = (
            [(f"{place}[{index}]", item) for index, item in enumerate(value)]
            if isinstance(value, list)
            else [(place, value)]
        )
        for where, item in items:
            if isinstance(item, ApiModel):
                yield from path_fields(item, where)
            elif marked and item:
                yield where, item


@cache
def _fields(kind: type[ApiModel]) -> tuple[tuple[str, str, bool], ...]:
    """Return (name, alias, whether it holds paths) of every field of a model."""
    return tuple(
        (name, str(field.alias), is_path(field.annotation, field.metadata))
        for name, field in kind.model_fields.items()
    )


def is_path(annotation: Any, metadata: list[Any]) -> bool:
    """Tell whether a field holds a path, or a list of them."""
    return any(map(_is_marked, (annotation, *metadata)))


def _is_marked(part: Any) -> bool:
    return isinstance(part, PathMarker) or any(map(_is_marked, get_args(part)))
