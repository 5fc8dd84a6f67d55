"""Paths, placeholders and limits of free JSON in a job."""

import json
import re
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from raggrpo_api.fields.json_values import (
    JSON_PATH,
    JsonTemplate,
    placeholders,
    render_template,
    values_at,
)

VALUE = {"a": [{"b": [1, 2]}, {"b": [3]}], "c-d": {"e": None}, "@x": "y"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$", [VALUE]),
        ("a[1].b", [[3]]),
        ("$.a[*].b", [[1, 2], [3]]),
        ("a[*].b[*]", [1, 2, 3]),
        ("c-d.e", [None]),
        ("@x", ["y"]),
        ("a.b", []),
        ("a[9]", []),
        ("c-d[*]", []),
    ],
)
def test_values_at_returns_values_matching_path(path: str, expected: list[Any]) -> None:
    assert re.search(JSON_PATH, path)
    assert values_at(path, VALUE) == expected


@pytest.mark.parametrize("path", ["a..b", ".a", "a.", "a[", "a[x]", "$$", "a b", "a[?(@.x)]", "$a"])
def test_invalid_json_path_is_rejected(path: str) -> None:
    assert not re.search(JSON_PATH, path)


def test_template_placeholders_are_names_in_braces() -> None:
    template = {"q": "query { Get { text } } {a}", "n": ["{b}", "{{c}}", "{}", "{0}", "{ d }"]}
    assert placeholders(template) == {"a", "b"}
    assert render_template(template, {"a": "{b}", "b": [1]}) == {
        "q": "query { Get { text } } {b}",
        "n": [[1], "{c}", "{}", "{0}", "{ d }"],
    }


@pytest.mark.parametrize(
    "value",
    [
        json.loads("[" * 13 + "]" * 13),
        [0] * 512,
        "x" * 16_385,
        {"x" * 257: 1},
        float("inf"),
        10**400,
        object(),
    ],
)
def test_oversized_or_non_json_template_is_rejected(value: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(JsonTemplate).validate_python(value)
