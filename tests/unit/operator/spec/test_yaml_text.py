import pytest

from raggrpo_operator.core.spec.violation import Reason, Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml


def test_numbers_are_parsed_like_kubectl() -> None:
    text = "a: 1e-6\nb: 1.0e-6\nc: '1e-6'\nd: x1e5"
    assert read_yaml(text) == {"a": 1e-6, "b": 1e-6, "c": "1e-6", "d": "x1e5"}


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("a: 1\na: 2", "line 2, column 1", "'a' is specified twice"),
        ("a: {b: 1, b: 2}", "line 1, column 11", "'b' is specified twice"),
        ("a: [1", "line 1, column 6", "expected"),
        ("a: 1\n---\nb: 2", "line 2, column 1", "another document"),
        ("a: !!python/object:os.system x", "line 1, column 4", "tag"),
        ("? [a, b]\n: c", "line 1, column 3", "unhashable"),
        ("a: *b", "line 1, column 4", "undefined alias"),
        ("\x00", "(file)", "not allowed"),
    ],
)
def test_invalid_yaml_has_line_and_column(text: str, where: str, problem: str) -> None:
    violation = read_yaml(text)
    assert isinstance(violation, Violation)
    assert violation.reason is Reason.INVALID_YAML
    assert where in violation.path
    assert problem in violation.message


def test_yaml_merge_keys_may_be_overridden() -> None:
    text = "base: &base {x: 1, y: 1}\nc: {<<: *base, x: 2}"
    assert read_yaml(text) == {"base": {"x": 1, "y": 1}, "c": {"x": 2, "y": 1}}


def test_empty_yaml_file_is_parsed_as_none() -> None:
    assert read_yaml("") is None
