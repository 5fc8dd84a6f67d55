"""Child processes that exchange lines of JSON on standard input and output."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from signal import strsignal
from typing import Any, Final

from raggrpo_api.foreign_files import parse_json

MAX_LINE_BYTES: Final = 64 << 10
"""Default of asyncio."""
_NO_VARIABLES: Final[Mapping[str, str]] = {}
_SOURCE: Final = str(Path(__file__).parents[1])
_IMPORT_AND_RUN: Final = """
import importlib, sys
source, module = sys.argv[1:3]
del sys.argv[1:3]
sys.path.append(source)
main = importlib.import_module(module).main
sys.path.remove(source)
main()
"""
"""Runs a module without leaving the packages next to it on the import path."""


class ProcessExited(Exception):
    """A process exited without another line."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.how = f"exited with code {code}"
        """What happened to the process, such as `was killed by signal 9 (Killed)`."""
        if self.is_killed:
            self.how = f"was killed by signal {-code} ({strsignal(-code)})"
        super().__init__(f"it {self.how}")

    @property
    def is_killed(self) -> bool:
        """Whether a signal ended the process, for example because memory was short."""
        return self.code < 0


class LineTooLong(ValueError):
    """A process wrote a line of more than `max_line_bytes`."""

    def __init__(self) -> None:
        super().__init__("it is too long")


async def start_module(
    module: str,
    *arguments: str,
    folder: str = "",
    interpreter: str = "",
    variables: Mapping[str, str] = _NO_VARIABLES,
    stderr: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Process:
    """Start `python -m module` with the import path of this process, `folder` first.

    With `interpreter`, the import path is that of the interpreter, and the module must import only
    the standard library and modules of this package that do so. `variables` are added to the
    environment; without `stderr`, errors go to that of this process. Raises OSError.
    """
    command = [sys.executable, "-m", module]
    paths = os.pathsep.join(filter(None, [folder, *sys.path]))
    if interpreter:
        command, paths = [interpreter, "-c", _IMPORT_AND_RUN, _SOURCE, module], folder
    return await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
        env={**os.environ, **variables, "PYTHONPATH": paths},
        limit=max_line_bytes,
    )


async def send(process: Process, value: Any) -> None:
    """Send a line to a process. If the process has exited, the next `receive` raises."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(value).encode() + b"\n")
    with suppress(ConnectionError):
        await process.stdin.drain()


async def receive(process: Process) -> dict[str, Any]:
    """Return the object in the next line.

    Raises ProcessExited, LineTooLong, or ValueError if the line is not an object or exceeds the
    limits of `parse_json`: the user's code may write to the process's output.
    """
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
    except ValueError as error:
        raise LineTooLong from error
    if not line.endswith(b"\n"):
        raise ProcessExited(await process.wait())
    value = parse_json(line)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


async def kill(process: Process) -> None:
    """Kill a process unless it has exited, and wait for its exit."""
    if process.returncode is None:
        process.kill()
    await process.wait()
