"""`EngineDead`: a living actor whose engine is dead; and what the engine's processes last wrote.

vLLM's engine core is a process of its own. When it dies, the caller learns only that it did ("see
the stack trace above"); the reason stands in what the core wrote to this process's outputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raggrpo_trainer.host.out_of_memory import OutOfMemory, in_text, out_of_memory

MAX_OUTPUT = 256 * 2**10
"""Bytes read from the end of an output."""
MAX_REASON = 600


class EngineDead(Exception):
    """The engine failed and is not trusted again; its actor has to be replaced."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Output:
    """A file that this process and its children write to, from where it ended when seen first."""

    path: Path
    start: int

    def tail(self) -> str:
        """Return the end of what was written since."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(self.start, self.path.stat().st_size - MAX_OUTPUT))
                return file.read(MAX_OUTPUT).decode(errors="replace")
        except OSError:
            return ""  # rotated away; the error's own words remain


def own_outputs() -> list[Output]:
    """Return the files behind standard output and error; terminals and pipes are left out."""
    links = (Path(f"/proc/self/fd/{number}") for number in (1, 2))
    files = {link.resolve() for link in links if link.is_file()}
    return [Output(file, file.stat().st_size) for file in sorted(files)]


def reason_of(error: BaseException, outputs: list[Output]) -> str:
    """Return the line that explains the failure, or the end of the error's own words."""
    found: OutOfMemory | None = out_of_memory(error)
    for output in outputs:
        found = found or in_text(output.tail())
    if found is not None:
        return found.line
    return f"{type(error).__name__}: {error}"[-MAX_REASON:]


@contextmanager
def dead_on(outputs: list[Output], *errors: type[BaseException]) -> Iterator[None]:
    """Turn these errors into EngineDead with the reason."""
    try:
        yield
    except EngineDead:
        raise
    except errors as error:
        raise EngineDead(reason_of(error, outputs)) from error
