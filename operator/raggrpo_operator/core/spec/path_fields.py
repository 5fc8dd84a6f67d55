"""File system paths in a spec. Does not access the file system."""

from collections.abc import Iterator, Sequence
from typing import Any

from raggrpo_api.fields.base import ApiModel, PathMarker
from raggrpo_api.spec.resources import Volume

from .marked_fields import marked_values, marker_in


def path_fields(model: ApiModel, prefix: str = "spec") -> Iterator[tuple[str, str]]:
    """Yield (field path, value) of every non-empty field that is a file system path."""
    for place, _, value in marked_values(model, PathMarker, prefix):
        yield place, value


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is `folder` or below it; both are normalized."""
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def volume_of(path: str, volumes: Sequence[Volume]) -> Volume | None:
    """Return the volume with the longest mount path that contains a path, or None."""
    holding = [volume for volume in volumes if is_within(path, volume.mount_path)]
    return max(holding, key=lambda volume: len(volume.mount_path.rstrip("/")), default=None)


def is_path(annotation: Any, metadata: list[Any]) -> bool:
    """Return whether a field is a path or a list of paths."""
    return marker_in(annotation, metadata, PathMarker) is not None
