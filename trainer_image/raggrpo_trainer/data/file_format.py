"""Recognize files whose content is not what their name suggests. Must not parse rows."""

import re
from pathlib import Path

from raggrpo_api.foreign_files import open_regular

LFS_POINTER = "is a Git LFS pointer, not the file"
LFS_REMEDY = "run `git lfs pull`"
_LFS_HEADER = b"version https://git-lfs.github.com/spec/"
_BYTE_ORDER_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_NON_ASCII_RUN = re.compile(rb"[\x80-\xff]{2,}")


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a Git LFS pointer. Raises OSError."""
    with open_regular(path) as file:
        return file.read(len(_LFS_HEADER)) == _LFS_HEADER


def wide_encoding(start: bytes) -> str:
    """Return UTF-16 or UTF-32 if a file that starts with these bytes has it, else ""."""
    for mark, name in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return name
    match [byte == 0 for byte in start[:4]]:  # without byte order mark, the first letter is ASCII
        case [True, True, True, False] | [False, True, True, True]:
            return "UTF-32"
        case [True, False, *_] | [False, True, *_]:
            return "UTF-16"
    return ""


def likely_encoding(text: bytes) -> str:
    """Return the likely encoding of text that is not UTF-8, or "".

    In Windows-1252, letters outside ASCII are single; in GBK they come in pairs.
    """
    if not _NON_ASCII_RUN.search(text):
        return "Windows-1252"
    try:
        text.decode("gb18030")
    except UnicodeDecodeError:
        return ""
    return "GBK"
