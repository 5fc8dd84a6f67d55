"""Fields that the chart's `jobPolicy` restricts, found by their markers in the models."""

from typing import Any

from raggrpo_api.fields.addresses import HTTP_URL, OTHER_PATH_PATTERN
from raggrpo_api.fields.reach import (
    REDIRECTING_HEADERS,
    REDIRECTING_VARIABLES,
    HeaderName,
    SecretName,
    Server,
)
from raggrpo_api.spec.job_spec import JobSpec

from .spec.marked_fields import marked_places

CONDITION = "CONDITION"
"""Placeholder that the chart replaces with a CEL condition on `value`, the value of the field."""


def policy_fields() -> dict[str, Any]:
    """Return the restricted fields by kind, and the patterns of the chart's conditions."""
    return {
        "servers": [_field(place, server.url) for place, server in marked_places(JobSpec, Server)],
        "secrets": [_field(place) for place, _ in marked_places(JobSpec, SecretName)],
        "headers": [_field(place) for place, _ in marked_places(JobSpec, HeaderName)],
        "redirectingHeaders": REDIRECTING_HEADERS,
        "redirectingVariables": REDIRECTING_VARIABLES,
        "url": HTTP_URL,
        "otherPath": OTHER_PATH_PATTERN,
    }


def _field(place: str, constant: str = "") -> dict[str, str]:
    """Return a field and an expression that a condition is true for all its values.

    With `constant`, the condition is on this value if the field is not empty.
    """
    _, *names = place.split(".")
    return {"field": place, "rule": _for_all(names, "object.spec", constant)}


def _for_all(names: list[str], of: str, constant: str, depth: int = 0) -> str:
    """Return CEL for the fields below `of`; unset fields have the value ""."""
    name, *rest = names
    path = f"{of}.?{name.removesuffix('[]')}"
    if not name.endswith("[]"):
        return _for_all(rest, path, constant, depth) if rest else _for_text(path, constant)
    if not rest:
        return f"{path}.orValue([]).all(value, {CONDITION})"
    item = f"item{depth}"
    return f"{path}.orValue([]).all({item}, {_for_all(rest, item, constant, depth + 1)})"


def _for_text(path: str, constant: str) -> str:
    text = f"{path}.orValue('')"
    value = f"{text} == '' ? '' : '{constant}'" if constant else text
    return f"[{value}].all(value, {CONDITION})"
