"""Names of files that come from a bucket or a checkpoint folder. Pure, except for links.

Anyone who can write to the bucket chooses these names: none may leave the folder.
"""

from pathlib import Path, PurePosixPath


def path_below(folder: Path, name: str) -> Path:
    """Return the path of a file in `folder`, or in one of its subfolders.

    Raises ValueError if the name could lead out of the folder: if it is absolute, contains `..` or
    control characters, or passes through a link.
    """
    parts = PurePosixPath(name).parts
    is_plain = bool(parts) and name.isprintable() and "\\" not in name
    if not is_plain or name.startswith("/") or ".." in parts:
        raise ValueError(f"{name!r} is not the name of a file in the folder")
    path = folder
    for part in parts:
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
