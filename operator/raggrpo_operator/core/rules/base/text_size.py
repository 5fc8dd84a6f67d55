"""Total size of the strings in a value, in bytes of UTF-8, as computed by Python and by CEL.

Rules limit this size, because etcd stores the job and the environment of a pod is limited.
"""

from collections.abc import Iterator
from typing import Any

from raggrpo_api.fields.json_values import FREE_JSON
from raggrpo_operator.core.spec.structural import Schema

ESCAPED = {"namespace": "__namespace__"}
"""Names of fields that are reserved words of CEL → their names in expressions."""


def text_bytes(value: Any, is_free: bool = False) -> int:
    """Return the bytes of all strings in a JSON value; keys count only in free JSON."""
    match value:
        case str():
            return len(value.encode())
        case dict() if is_free:
            return sum(len(key.encode()) + text_bytes(each, True) for key, each in value.items())
        case dict():
            return sum(text_bytes(each, key in FREE_JSON) for key, each in value.items())
        case list():
            return sum(text_bytes(each, is_free) for each in value)
        case _:
            return 0


def cel_text_bytes(schema: Schema, place: str = "self") -> str:
    """Return an expression for the bytes of all strings at a place, without free JSON."""
    return " + ".join(_terms(schema, place, 0)) or "0"


def _terms(schema: Schema, place: str, depth: int) -> Iterator[str]:
    """Yield CEL terms whose sum is the bytes of all strings at a place."""
    match schema.get("type"):
        case "string" if "enum" not in schema:
            yield f"size(bytes({place}))"
        case "array":
            item = f"e{depth}"
            if terms := list(_terms(schema["items"], item, depth + 1)):
                yield f"{place}.map({item}, {' + '.join(terms)}).sum()"
        case "object" if "properties" in schema:
            required = schema.get("required", [])
            for name, field in schema["properties"].items():
                at = f"{place}.{ESCAPED.get(name, name)}"
                if terms := list(_terms(field, at, depth)):
                    total = " + ".join(terms)
                    yield total if name in required else f"(has({at}) ? {total} : 0)"
        case "object":
            key = f"e{depth}"
            if terms := list(_terms(schema["additionalProperties"], f"{place}[{key}]", depth + 1)):
                yield f"{place}.map({key}, {' + '.join(terms)}).sum()"
