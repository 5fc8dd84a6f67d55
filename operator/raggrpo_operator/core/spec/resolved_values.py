"""Looks up the values of a resolved specification by path, such as `rollout.n`."""

from typing import Any

from .resolve import Resolved


def values_by_path(resolved: Resolved) -> dict[str, Any]:
    """Return every leaf that has an origin, as a plain JSON value, in model order."""
    spec = resolved.spec.model_dump(mode="json", by_alias=True)
    return {path: _value_at(spec, path) for path in resolved.origins}


def _value_at(spec: Any, path: str) -> Any:
    for key in path.replace("]", "").replace("[", ".").split("."):
        spec = spec[int(key)] if isinstance(spec, list) else spec[key]
    return spec
