"""Fields of `TrainerConfig` in each release, by schema digest.

A running job keeps its image when the operator is upgraded, so the operator omits fields that the
image does not support. `make generate` writes the entry of this release. Keep the entry of an
earlier release for as long as jobs with an image of that release must be able to resume.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("schemas.json")

Fields = dict[str, Any]
"""Fields by name, each with its nested fields, or None if the field accepts any value."""


@cache
def known_schemas() -> Mapping[str, Fields]:
    """Return the fields of each known schema, by digest."""
    return {each["digest"]: each["fields"] for each in json.loads(FILE.read_text()).values()}


def drop_unknown(value: Any, fields: Fields | None) -> Any:
    """Return a JSON value without fields that are not in `fields`."""
    if isinstance(value, list):
        return [drop_unknown(item, fields) for item in value]
    if not isinstance(value, dict) or fields is None:
        return value
    return {key: drop_unknown(value[key], fields[key]) for key in value if key in fields}


def unknown_paths(value: Any, fields: Fields | None, path: str) -> Iterator[str]:
    """Yield the path of every value that `drop_unknown` drops."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_paths(item, fields, f"{path}[{index}]")
    elif isinstance(value, dict) and fields is not None:
        for key, item in value.items():
            place = f"{path}.{key}"
            if key in fields:
                yield from unknown_paths(item, fields[key], place)
            else:
                yield place


def fields_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Fields | None:
    """Return the fields of a JSON schema."""
    if "$ref" in schema:
        return fields_of(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    for either in schema.get("anyOf", []):
        if (fields := fields_of(either, definitions)) is not None:
            return fields
    if "items" in schema:
        return fields_of(schema["items"], definitions)
    if "properties" not in schema:
        return None
    return {name: fields_of(each, definitions) for name, each in schema["properties"].items()}


def with_release(text: str, version: str, digest: str, schema: Mapping[str, Any]) -> str:
    """Return the text of FILE with the entry of this release added or replaced."""
    releases = json.loads(text)
    fields = fields_of(schema, schema.get("$defs", {}))
    releases[version] = {"digest": digest, "fields": fields}
    return json.dumps(releases, indent=1, sort_keys=True) + "\n"
