"""Prints for people: what jobs, pods and servers say never reaches a terminal as control codes."""

import codecs
import sys
from collections.abc import Callable

import typer

from raggrpo_api.fields.text import printable


def show(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print the text, without its control characters."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def log_printer() -> Callable[[bytes], None]:
    """Return what prints parts of a log: as they are into a file or pipe, printable on a terminal.

    A character may begin in one part and end in the next.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    is_terminal = sys.stdout.isatty()

    def show_part(part: bytes) -> None:
        shown = printable(decoder.decode(part)).encode() if is_terminal else part
        sys.stdout.buffer.write(shown)
        sys.stdout.buffer.flush()

    return show_part
