import pytest

from raggrpo_api.fields.text import error_first


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("unknown flag", "unknown flag"),
        ("starting\nunknown flag\n\n", "unknown flag"),
        (
            "Traceback\n  File\nmy.pkg.BadError: 1\n  2",
            "my.pkg.BadError: 1 2 (after Traceback File)",
        ),
        ("KeyError: 'x'\n\nDuring handling:\nSystemExit: 3", "SystemExit: 3"),
    ],
)
def test_error_of_traceback_comes_first(text: str, line: str) -> None:
    assert error_first(text, 100).startswith(line)
    assert len(error_first(text, 100)) <= 100


def test_error_first_shortens_what_precedes_error() -> None:
    shown = error_first("a " * 500 + "\nValueError: x", 100)
    assert shown.startswith("ValueError: x (after …")
    assert len(shown) <= 100
