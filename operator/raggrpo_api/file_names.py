"""Names of files that a server or a folder of others specifies. Pure, except for links.

Anyone who can write there chooses these names: none may leave the folder.
"""

from pathlib import Path, PurePosixPath

MAX_NAME = 1024
"""Characters of a relative path."""
MAX_PARTS = 16
MAX_PART_BYTES = 255
"""Bytes of a file's name, as in all common file systems."""


def checked_parts(name: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Pure.

    Raises ValueError if the name could lead out of a folder, or is not in its shortest form: if it
    is absolute, too long or contains `.`, `..`, `//`, a backslash or control characters.
    """
    parts = PurePosixPath(name).parts
    is_plain = "/".join(parts) == name and name.isprintable() and "\\" not in name
    if not parts or not is_plain or name.startswith("/") or ".." in parts:
        raise ValueError(f"{name[:100]!r} is not the name of a file in the folder")
    is_long = len(name) > MAX_NAME or len(parts) > MAX_PARTS
    if is_long or max(len(part.encode()) for part in parts) > MAX_PART_BYTES:
        raise ValueError(f"{name[:100]!r}… is too long for the name of a file")
    return parts


def path_below(folder: Path, name: str) -> Path:
    """Return the path of a file in `folder`, or in one of its subfolders.

    Raises ValueError as `checked_parts`, or if the path passes through a link.
    """
    path = folder
    for part in checked_parts(name):
        path = path / part
        if path.is_symlink():
            raise ValueError(f"{path} is a link")
    return path


def regular_file_below(folder: Path, name: str) -> Path:
    """Return the path of an existing file as `path_below`. Raises ValueError if it is special."""
    path = path_below(folder, name)
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    return path
