"""Read text files that someone else may have written."""

from pathlib import Path

MAX_BYTES = 1 << 20
"""Maximum size of a job file, a configuration or a script."""


def read_text_file(path: Path) -> str:
    """Return the text of a regular file.

    Raises OSError if it cannot be read, is a device or a pipe, or has more than MAX_BYTES bytes,
    and UnicodeDecodeError if it is not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise OSError(f"it has more than {MAX_BYTES} bytes")
    return raw.decode("utf-8")
