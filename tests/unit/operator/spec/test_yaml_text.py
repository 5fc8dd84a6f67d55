import pytest

from raggrpo_operator.core.spec.violation import Reason, Violation
from raggrpo_operator.core.spec.yaml_text import MAX_SIZE, read_yaml


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


def test_scalars_are_read_like_kubectl() -> None:
    text = "[1:30, 12:30:45.5, 2026-01-01, 2026-01-01T00:00:00Z, 1.5e6, 0x1F, 010, 08, 1_000, =]"
    expected = ["1:30", "12:30:45.5", "2026-01-01", "2026-01-01T00:00:00Z", 1.5e6, 31, 8, "08"]
    assert read_yaml(text) == [*expected, 1000, "="]


@pytest.mark.parametrize("number", ["9" * 101, "0x" + "f" * 900_000, ":".join(["1"] * 300) + ".5"])
def test_long_number_is_read_as_text(number: str) -> None:
    assert read_yaml(f"a: {number}") == {"a": number}


@pytest.mark.parametrize("text", ["0b_", "0x_", "-", "+_", "._", "_", "1e", "0_b1", "+.nan", "0o7"])
def test_incomplete_number_is_read_as_text(text: str) -> None:
    assert read_yaml(f"[{text}]") == [text]


@pytest.mark.parametrize(
    "value",
    [
        *("!!bool maybe", "!!int ''", "!!int '_'", "!!float ''", "!!timestamp soon"),
        *(
            "!!binary aGVsbG8=",
            "!!set {a, b}",
            "!!omap [a: 1]",
            "!!pairs [a: 1]",
            "!local {}",
            "!!map [a]",
        ),
        "!!int " + ":".join(["1"] * 1000),
    ],
)
def test_tags_are_rejected(value: str) -> None:
    violation = read_yaml(f"a: {value}")
    assert isinstance(violation, Violation)
    assert "line 1, column 4" in violation.path
    assert "is not supported" in violation.message


def test_string_tag_is_accepted() -> None:
    assert read_yaml("[!!str 1, !!str yes, ! x]") == ["1", "yes", "x"]


@pytest.mark.parametrize("escape", [r"\UFFFFFFFF", r"\U00110000", r"\uD800", r"\uD83D\uDE00"])
def test_escapes_beyond_unicode_are_rejected(escape: str) -> None:
    violation = read_yaml(f'a: "{escape}"')
    assert isinstance(violation, Violation)
    assert "a value cannot be read" in violation.message


@pytest.mark.parametrize("text", ["a: &a {b: *a}", "a: &a [*a]", "a: &a\n  <<: *a\n  x: 1"])
def test_alias_of_itself_is_rejected(text: str) -> None:
    violation = read_yaml(text)
    assert isinstance(violation, Violation)
    assert "alias 'a' contains itself" in violation.message


def levels(first: str, item: str, count: int = 9) -> str:
    """Return YAML whose `count` levels each refer ten times to the level before."""
    rows = (f"a{i}: &a{i} {item.format(', '.join([f'*a{i - 1}'] * 10))}" for i in range(1, count))
    return "\n".join([f"a0: &a0 {first}", *rows])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(levels("{x: 1}", "{{<<: [{}]}}"), id="merge keys"),
        pytest.param(levels("{x: 1}", "{{<<: {{y: [{}]}}}}"), id="merged mappings with lists"),
        pytest.param(levels("[x]", "[{}]"), id="lists"),
        pytest.param(f"s: &s {'x' * 10_000}\nl: [{'*s,' * 1000}]", id="long text"),
        pytest.param(f"a: &a {{x: 1}}\nb: {{<<: [{'*a,' * 100_000}]}}", id="one mapping"),
        pytest.param(f"a: [{'a,' * 100_000}]", id="many values"),
    ],
)
def test_documents_that_expand_beyond_limit_are_rejected(text: str) -> None:
    violation = read_yaml(text)
    assert isinstance(violation, Violation)
    assert f"expand to more than {MAX_SIZE} characters" in violation.message


SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.mark.parametrize(
    "text", [f"{{{SECRET}: 1, {SECRET}: 2}}", f"a: *{SECRET}", f"&{SECRET} [*{SECRET}]"]
)
def test_secret_in_invalid_yaml_is_not_shown(text: str) -> None:
    violation = read_yaml(text)
    assert isinstance(violation, Violation)
    assert SECRET not in violation.line()
