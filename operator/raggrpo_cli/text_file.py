"""Read text files that others may have written."""

from pathlib import Path

from raggrpo_api.foreign_files import read_limited
from raggrpo_api.limits import MAX_TEXT_FILE_BYTES


def read_text_file(path: Path) -> str:
    """Return the text of a regular file.

    Raises OSError if it cannot be read, is special, or has more than MAX_TEXT_FILE_BYTES bytes, and
    UnicodeDecodeError if it is not UTF-8.
    """
    return read_limited(path, MAX_TEXT_FILE_BYTES).decode("utf-8")
