"""Recognize images, audio and video in rows, which the trainer does not support. Pure."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

MEDIA_NAMES = frozenset({"audio", "audios", "image", "images", "video", "videos"})
"""Column names of verl, TRL and Hugging Face data sets for media."""
MEDIA_FIELDS = frozenset({"bytes", "path"})
"""Fields in which the library `datasets` stores an image or a sound."""
MEDIA_REMEDY = "use text only: remove the column and its placeholders, or drop the row"
_IMAGE_PLACEHOLDER = "<image>"
_PLACEHOLDERS = (_IMAGE_PLACEHOLDER, "<video>", "<audio>")


def media_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a parquet file whose type can contain media."""
    return [field.name for field in schema if _is_media_type(field.name, field.type)]


def first_media(values: Mapping[str, object]) -> str:
    """Return the first column of a row that contains media, or "".

    Text, such as the address of an image, counts only if the prompt has a placeholder for it.
    """
    return next((name for name, value in values.items() if _is_media(name, value)), "")


def media_problem(column: str) -> str:
    """Return the problem to report for a column that contains media."""
    kind = next((each for each in ("audio", "video") if each in column.lower()), "image")
    return f"column {column!r} has {kind} data, which is not supported"


def placeholder(text: str, columns: Iterable[str]) -> str:
    """Return the placeholder for media in a prompt, or "".

    <video> and <audio> are also HTML; they count only if the row has a column for media.
    """
    has_column = any(name.lower() in MEDIA_NAMES for name in columns)
    candidates = _PLACEHOLDERS if has_column else (_IMAGE_PLACEHOLDER,)
    return next((each for each in candidates if each in text), "")


def _is_media_type(name: str, kind: pa.DataType) -> bool:
    is_list = _is_list(kind)
    while _is_list(kind):
        kind = kind.value_type
    is_struct = pa.types.is_struct(kind)
    if is_struct and {kind.field(i).name for i in range(kind.num_fields)} >= MEDIA_FIELDS:
        return True
    is_content = is_list or is_struct or pa.types.is_binary(kind)
    return bool(is_content) and name.lower() in MEDIA_NAMES


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_media(name: str, value: object) -> bool:
    if isinstance(value, list):
        return any(_is_media(name, item) or _is_named_text(name, item) for item in value)
    if isinstance(value, Mapping) and value.keys() >= MEDIA_FIELDS:
        return any(value[field] is not None for field in MEDIA_FIELDS)
    return bool(value) and name.lower() in MEDIA_NAMES and isinstance(value, bytes | Mapping)


def _is_named_text(name: str, value: object) -> bool:
    return isinstance(value, str) and bool(value) and name.lower() in MEDIA_NAMES
