from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from raggrpo_operator.core.spec.structural import Schema, structural


class Inner(BaseModel):
    """An inner thing."""

    size: int = 3


class Outer(BaseModel):
    inner: Inner = Field(Inner(), description="Which inner.")
    maybe: Inner | None = None
    bare: Inner = Inner()
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    kind: Literal["only"] = "only"
    many: list[Inner] = []
    named: dict[str, Inner] = {}


class Selector(BaseModel):
    labels: dict[Annotated[str, Field(pattern="^a$")], int] = {}


class Node(BaseModel):
    next: "Node | None" = None


class Union(BaseModel):
    either: int | str = 1


class Pair(BaseModel):
    pair: tuple[int, str]


def silent(_place: str, _default: Any) -> str:
    return ""


def spoken(place: str, default: Any) -> str:
    return f"{place}={default!r}" if not isinstance(default, dict) else ""


def field_of(name: str) -> Schema:
    properties: dict[str, Schema] = structural(Outer, silent)["properties"]
    return properties[name]


def test_schema_refs_are_inlined_and_sibling_keys_take_precedence() -> None:
    inner = {"properties": {"size": {"type": "integer", "format": "int64"}}, "type": "object"}

    assert field_of("inner") == {"description": "Which inner."} | inner
    assert field_of("bare") == {"description": "An inner thing."} | inner
    assert field_of("maybe") == field_of("bare")
    assert field_of("many")["items"] == field_of("bare")
    assert field_of("named")["additionalProperties"] == field_of("bare")


def test_map_with_key_pattern_is_kept_as_map() -> None:
    labels = structural(Selector, silent)["properties"]["labels"]
    assert labels["additionalProperties"] == {"type": "integer", "format": "int64"}
    assert "patternProperties" not in labels


def test_exclusive_bounds_are_converted_to_flags() -> None:
    assert field_of("share") == {
        "type": "number",
        "minimum": 0.0,
        "exclusiveMinimum": True,
        "maximum": 1.0,
        "exclusiveMaximum": True,
    }


def test_const_is_converted_to_single_value_enum() -> None:
    assert field_of("kind") == {"type": "string", "enum": ["only"]}


def test_structural_descriptions_end_with_default_value() -> None:
    properties = structural(Outer, spoken)["properties"]
    assert properties["share"]["description"] == "share=0.5"
    assert properties["inner"]["properties"]["size"]["description"] == "inner.size=3"
    assert properties["many"]["items"]["properties"]["size"]["description"] == "many[].size=3"


@pytest.mark.parametrize(
    ("model", "message"),
    [(Union, "either: anyOf"), (Pair, "pair: prefixItems"), (Node, "Node contains itself")],
)
def test_unsupported_schema_error_names_field(model: type[BaseModel], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        structural(model, silent)
