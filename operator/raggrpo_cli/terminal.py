"""Prints text from jobs, pods and servers without control characters."""

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

    On a terminal, a character that is split between two chunks is printed once it is complete.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    is_terminal = sys.stdout.isatty()

    def write(chunk: bytes) -> None:
        output = printable(decoder.decode(chunk)).encode() if is_terminal else chunk
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()

    return write
