"""File system paths in a spec. Does not access the file system."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, get_args

from raggrpo_api.fields.base import ApiModel, PathMarker
from raggrpo_api.spec.resources import Volume


def path_fields(model: ApiModel, prefix: str = "spec") -> Iterator[tuple[str, str]]:
    """Yield (field path, value) of every non-empty field that is a file system path."""
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


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is `folder` or below it; both are normalized."""
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def volume_of(path: str, volumes: Sequence[Volume]) -> Volume | None:
    """Return the volume with the longest mount path that contains a path, or None."""
    holding = [volume for volume in volumes if is_within(path, volume.mount_path)]
    return max(holding, key=lambda volume: len(volume.mount_path.rstrip("/")), default=None)


@cache
def _fields(kind: type[ApiModel]) -> tuple[tuple[str, str, bool], ...]:
    """Return (name, alias, whether it is a path) for every field of a model."""
    return tuple(
        (name, str(field.alias), is_path(field.annotation, field.metadata))
        for name, field in kind.model_fields.items()
    )


def is_path(annotation: Any, metadata: list[Any]) -> bool:
    """Return whether a field is a path or a list of paths."""
    return any(map(_is_marked, (annotation, *metadata)))


def _is_marked(part: Any) -> bool:
    return isinstance(part, PathMarker) or any(map(_is_marked, get_args(part)))
