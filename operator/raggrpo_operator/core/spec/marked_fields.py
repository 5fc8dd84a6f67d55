"""Fields of a spec whose type has a marker, such as the names of Secrets."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar, get_args

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import model_in

M = TypeVar("M")


def marked_values(
    model: ApiModel, kind: type[M], prefix: str = "spec"
) -> Iterator[tuple[str, M, str]]:
    """Yield (field path, marker, value) of every field with a marker that is not empty."""
    for name, alias, markers in _fields(type(model)):
        marker = _first(kind, markers)
        place = f"{prefix}.{alias}"
        value = getattr(model, name)
        items = (
            [(f"{place}[{index}]", item) for index, item in enumerate(value)]
            if isinstance(value, list)
            else [(place, value)]
        )
        for where, item in items:
            if isinstance(item, ApiModel):
                yield from marked_values(item, kind, where)
            elif marker is not None and item:
                yield where, marker, item


def marked_places(
    model: type[ApiModel], kind: type[M], prefix: str = "spec"
) -> Iterator[tuple[str, M]]:
    """Yield (place, marker) of every field with a marker; places are such as `spec.env[]`."""
    for name, alias, markers in _fields(model):
        marker = _first(kind, markers)
        annotation = model.model_fields[name].annotation
        place = f"{prefix}.{alias}{'[]' if _is_list(annotation) else ''}"
        if marker is not None:
            yield place, marker
        elif nested := model_in(annotation):
            yield from marked_places(nested, kind, place)


def marker_in(annotation: Any, metadata: Sequence[Any], kind: type[M]) -> M | None:
    """Return the marker of a field or of the items of its list, or None."""
    return _first(kind, (each for part in (annotation, *metadata) for each in _markers(part)))


@cache
def _fields(model: type[ApiModel]) -> tuple[tuple[str, str, tuple[Any, ...]], ...]:
    """Return (name, alias, markers) of every field of a model."""
    return tuple(
        (name, str(field.alias), (*_markers(field.annotation), *field.metadata))
        for name, field in model.model_fields.items()
    )


def _markers(part: Any) -> Iterator[Any]:
    """Yield the annotation or metadata and all that it contains."""
    yield part
    for inner in get_args(part):
        yield from _markers(inner)


def _first(kind: type[M], markers: Iterable[Any]) -> M | None:
    return next((each for each in markers if isinstance(each, kind)), None)


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is list
