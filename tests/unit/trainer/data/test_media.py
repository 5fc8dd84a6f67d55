from typing import Any

import pyarrow as pa
import pytest

from raggrpo_trainer.data.media import first_media, media_columns, media_problem, placeholder

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.row("D16")
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"images": ["x.png"]}, "images"),
        ({"images": [{"bytes": "eA=="}]}, "images"),
        ({"Image": {"url": "x"}}, "Image"),
        ({"photo": {"bytes": None, "path": "x.png"}}, "photo"),
        ({"pages": [[{"bytes": b"x", "path": None}]]}, "pages"),
        ({"audio": b"x"}, "audio"),
        ({"images": []}, ""),
        ({"images": None}, ""),
        ({"photo": {"bytes": None, "path": None}}, ""),
        ({"image": "https://example.com/x.png"}, ""),
        ({"tags": ["x"], "extra": {"path": "x"}}, ""),
    ],
)
def test_media_is_recognized_by_name_and_value(row: dict[str, Any], expected: str) -> None:
    assert first_media({"prompt": "q", **row}) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (IMAGE, ["images", "photo"]),
        (pa.list_(IMAGE), ["images", "photo"]),
        (pa.large_list(pa.string()), ["images"]),
        (pa.binary(), ["images"]),
        (pa.string(), []),
    ],
)
def test_media_columns_are_recognized_by_name_and_type(
    kind: pa.DataType, expected: list[str]
) -> None:
    schema = pa.schema([("prompt", pa.string()), ("images", kind), ("photo", kind)])
    assert media_columns(schema) == expected


def test_media_columns_tolerate_duplicate_column() -> None:
    schema = pa.schema([("x", pa.int64()), ("images", IMAGE), ("x", pa.int64())])
    assert media_columns(schema) == ["images"]


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("<image>What is it?", [], "<image>"),
        ("How does the tag <video> work?", ["prompt"], ""),
        ("<video>What happens?", ["prompt", "videos"], "<video>"),
        ("An image", ["images"], ""),
    ],
)
def test_html_tags_count_as_placeholders_only_with_media_column(
    text: str, columns: list[str], expected: str
) -> None:
    assert placeholder(text, columns) == expected


def test_media_problem_names_column_and_kind() -> None:
    assert media_problem("videos") == "column 'videos' has video data, which is not supported"
    assert media_problem("photo") == "column 'photo' has image data, which is not supported"
