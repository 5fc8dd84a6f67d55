"""Run a module of the trainer for a command."""

import subprocess
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import IO

import typer

from .terminal import log_printer

CHUNK_BYTES = 1 << 16


def output_of(command: Sequence[str], env: Mapping[str, str] | None = None) -> bytes:
    """Return the standard output of a process, or exit with its exit code if that is not 0.

    Its errors are printed without control characters: libraries print names from foreign files.
    """
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printing = Thread(target=_print, args=[process.stderr])
        printing.start()
        output = process.stdout.read()
        printing.join()
    if process.returncode:
        raise typer.Exit(process.returncode)
    return output


def _print(errors: IO[bytes]) -> None:
    write = log_printer(err=True)
    while chunk := errors.read1(CHUNK_BYTES):  # type: ignore[attr-defined]  # a BufferedReader
        write(chunk)
