"""Prints text from jobs, pods and servers without the control characters it may contain."""

import codecs
import sys
from collections.abc import Callable

import typer

from raggrpo_api.fields.text import printable


def show(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print the text without control characters."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def log_printer() -> Callable[[bytes], None]:
    """Return a function that prints chunks of a log, without control characters on a terminal.

    A character may be split between two chunks.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    is_terminal = sys.stdout.isatty()

    def write(chunk: bytes) -> None:
        output = printable(decoder.decode(chunk)).encode() if is_terminal else chunk
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()

    return write
