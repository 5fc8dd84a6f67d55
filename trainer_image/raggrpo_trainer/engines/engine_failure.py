"""`EngineDead`: the engine of a live actor has failed; the reason is in the engine's output.

vLLM's engine core is a separate process. When it exits, the caller's error only refers to "the
stack trace above". The reason is in the output files, which the core shares with the actor.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raggrpo_api.fields.text import error_first
from raggrpo_trainer.host.out_of_memory import OutOfMemory, out_of_memory, out_of_memory_in_text

MAX_OUTPUT_BYTES = 256 * 2**10
"""Maximum number of bytes read from the end of an output file."""
MAX_REASON_CHARS = 600
_REFERS_TO_OUTPUT = re.compile("See (?:root cause|stack trace)", re.IGNORECASE)
"""Pattern of an error of vLLM whose cause is in the output."""
_CORE_ERROR = re.compile(
    r"^(?:\([^)\n]*\) *)?(?:ERROR [-:\d. ]+\[[^\]\n]*\] *)?"
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S.*)$",
    re.MULTILINE,
)
"""Pattern of an error in the output of vLLM, after the prefix with process and time."""

_OCCUPIED_GPU = re.compile(
    r"Free memory on device \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
    r"desired GPU memory utilization \((?P<share>[\d.]+), (?P<needed>[\d.]+) GiB\)"
)
"""Pattern of vLLM's error when a starting engine finds too little free memory."""


class EngineDead(Exception):
    """The engine failed and is not used again; its actor must be replaced."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Output:
    """An output file of this process and its children, from offset `start` on."""

    path: Path
    start: int
    """Size in bytes when the file was first observed."""

    def tail(self) -> str:
        """Return the end of the output written since `start`, at most MAX_OUTPUT_BYTES."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(self.start, self.path.stat().st_size - MAX_OUTPUT_BYTES))
                return file.read(MAX_OUTPUT_BYTES).decode(errors="replace")
        except OSError:
            return ""  # the file was rotated; the error still has its own message


def own_outputs() -> list[Output]:
    """Return the files that receive standard output and error, without terminals and pipes."""
    links = (Path(f"/proc/self/fd/{number}") for number in (1, 2))
    files = {link.resolve() for link in links if link.is_file()}
    return [Output(file, file.stat().st_size) for file in sorted(files)]


def failure_reason(error: BaseException, outputs: list[Output]) -> str:
    """Return the line that reports a lack of memory, or else the error, with its cause."""
    shortage: OutOfMemory | None = out_of_memory(error)
    for output in outputs:
        shortage = shortage or out_of_memory_in_text(output.tail())
    if shortage is not None:
        return shortage.line
    message = error_first(f"{type(error).__name__}: {error}", MAX_REASON_CHARS)
    if _REFERS_TO_OUTPUT.search(message) is None:
        return message
    causes = (_last_error(output.tail()) for output in outputs)
    return next(filter(None, causes), message)


def memory_message(shortage: OutOfMemory) -> str:
    """Return the line that reports the shortage, or how much of the GPU other processes use."""
    occupied = _OCCUPIED_GPU.search(shortage.line)
    if occupied is None:
        return shortage.line
    total, needed = float(occupied["total"]), float(occupied["needed"])
    return (
        f"other processes, ranks of this job included, use {total - float(occupied['free']):.1f} "
        f"of {total:.1f} GiB of GPU memory, but a starting engine needs {needed:.1f} GiB "
        f"(rollout.gpuMemoryUtilization {occupied['share']}); stop the other processes or lower "
        "rollout.gpuMemoryUtilization"
    )


def _last_error(text: str) -> str:
    """Return the last error in the output of an engine's core that states a cause, or ""."""
    errors = [match[1] for match in _CORE_ERROR.finditer(text)]
    stated = [each for each in errors if _REFERS_TO_OUTPUT.search(each) is None]
    return stated[-1].strip()[:MAX_REASON_CHARS] if stated else ""


@contextmanager
def as_engine_dead(outputs: list[Output], *errors: type[BaseException]) -> Iterator[None]:
    """Translate `errors` into EngineDead with the reason."""
    try:
        yield
    except EngineDead:
        raise
    except errors as error:
        raise EngineDead(failure_reason(error, outputs)) from error
