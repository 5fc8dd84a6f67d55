"""Prints text from jobs, pods and servers without control characters."""

import codecs
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from raggrpo_api.fields.text import printable

ALL_LINES = -1
"""Value of `--tail` that prints the whole log."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow until the attempt ends.")]
Tail = Annotated[
    int, typer.Option("--tail", min=ALL_LINES, help="Number of last lines; -1 for all.")
]


def show(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print the text without control characters."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def last_lines_start(log: bytes, count: int) -> int:
    """Return the position of the last `count` lines of a log."""
    end = len(log) - log.endswith(b"\n")
    for _ in range(count):
        if (end := log.rfind(b"\n", 0, end)) < 0:
            return 0
    return min(end + 1, len(log))


def log_printer(*, err: bool = False) -> Callable[[bytes], None]:
    """Return a function that prints chunks of a log without control characters.

    A character that is split between two chunks is printed once it is complete.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(chunk: bytes) -> None:
        stream = sys.stderr if err else sys.stdout
        stream.buffer.write(printable(decoder.decode(chunk)).encode())
        stream.buffer.flush()

    return write
