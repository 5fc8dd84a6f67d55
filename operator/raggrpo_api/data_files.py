"""Names of data files and corpora. Pure; imports only the standard library.

Staging, the trainer and preflight use these functions, so that a file which one of them selects can
be read by the others.
"""

from enum import Enum
from pathlib import PurePath


class DataFormat(Enum):
    """Format of a data file; the values are its suffixes in lower case."""

    PARQUET = (".parquet",)
    JSON_LINES = (".jsonl", ".json", ".ndjson")


DATA_SUFFIXES = tuple(suffix for each in DataFormat for suffix in each.value)


def data_format(path: PurePath) -> DataFormat | None:
    """Return the format of a file by its suffix, or None."""
    suffix = path.suffix.lower()
    return next((each for each in DataFormat if suffix in each.value), None)


def is_data_file(path: PurePath) -> bool:
    """Return whether a file, relative to its folder, has rows: hidden files have none."""
    is_hidden = any(part.startswith((".", "_")) for part in path.parts)
    return data_format(path) is not None and not is_hidden
