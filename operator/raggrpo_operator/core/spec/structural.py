"""Structural schemas, as Kubernetes requires them, from pydantic models.

Raises ValueError with the field if a schema has no structural form (oneOf, tuples, unions).
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

Schema = dict[str, Any]


DescribeDefault = Callable[[str, Any], str]
"""Function from (place, default) to a sentence that describes the default, or ""."""

_UNSUPPORTED = ("oneOf", "allOf", "anyOf", "prefixItems", "not", "if")
_DROPPED = ("title", "default", "discriminator", "examples", "propertyNames", "const")


def structural(model: type[Any], describe_default: DescribeDefault) -> Schema:
    """Return a model's structural schema, with references inlined and without defaults.

    Objects are not closed (`additionalProperties: false`).
    """
    schema = TypeAdapter(model).json_schema(by_alias=True, mode="validation")
    return _Rewriter(schema.get("$defs", {}), describe_default).rewrite(schema, "")


class _Rewriter:
    def __init__(self, definitions: Mapping[str, Schema], describe: DescribeDefault) -> None:
        self._definitions = definitions
        self._describe = describe

    def rewrite(self, schema: Schema, place: str, above: tuple[str, ...] = ()) -> Schema:
        schema, above = self._inlined(schema, place, above)
        if unsupported := [key for key in _UNSUPPORTED if key in schema]:
            raise ValueError(f"{place or 'the root'}: {unsupported[0]} has no structural form")
        result = {key: value for key, value in schema.items() if key not in (*_DROPPED, "$defs")}
        if "const" in schema:
            result["enum"] = [schema["const"]]
        for side in ("Minimum", "Maximum"):
            exclusive = f"exclusive{side}"
            if exclusive in result:  # a number in JSON Schema, a flag in OpenAPI 3.0
                result |= {side.lower(): result[exclusive], exclusive: True}
        if result.get("type") == "integer":
            result["format"] = "int64"
        if "properties" in result:
            result.pop("additionalProperties", None)
            result["properties"] = {
                name: self.rewrite(field, f"{place}.{name}".removeprefix("."), above)
                for name, field in result["properties"].items()
            }
        elif (values := _values_of_map(result)) is not None:
            result["additionalProperties"] = self.rewrite(values, f"{place}.*", above)
            # Atomic, because server-side apply turns a granular map that was emptied into null.
            result["x-kubernetes-map-type"] = "atomic"
        if "items" in result:
            result["items"] = self.rewrite(result["items"], f"{place}[]", above)
        return self._with_description(result, schema, place)

    def _inlined(
        self, schema: Schema, place: str, above: tuple[str, ...]
    ) -> tuple[Schema, tuple[str, ...]]:
        """Replace `$ref` with its target and `X | null` with X; sibling keys take precedence.

        Also return `above`, the names of the enclosing definitions, with any name inlined here.
        """
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
        choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name in above:
                raise ValueError(f"{place}: {name} contains itself")
            inner, above = self._inlined(self._definitions[name], place, (*above, name))
        elif len(choices) == 1:
            inner, above = self._inlined(choices[0], place, above)
        else:
            return schema, above
        return inner | siblings, above

    def _with_description(self, result: Schema, schema: Schema, place: str) -> Schema:
        description = " ".join(str(result.pop("description", "")).split())
        default = self._describe(place, schema["default"]) if "default" in schema else ""
        if text := f"{description} {default}".strip():
            return {"description": text, **result}
        return result


def _values_of_map(schema: Schema) -> Schema | None:
    """Return the schema of a map's values, or None; a CEL rule validates the keys."""
    by_pattern = list(schema.pop("patternProperties", {}).values())
    values = by_pattern[0] if by_pattern else schema.get("additionalProperties")
    return values if isinstance(values, dict) else None
