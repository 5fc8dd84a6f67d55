"""The training history on disk, `<log dir>/metrics.e<epoch>.jsonl`.

Each attempt writes its own file. A line is a step (`step` and numbers) or an event (`event` and
its fields), with `time`, `epoch` and `attempt`. Imports only the standard library.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from raggrpo_api.foreign_files import json_memory, limited_lines, open_regular, require_own_file
from raggrpo_api.limits import MAX_HISTORY_BYTES, MAX_RECORD_BYTES

from .history_values import Record as Record
from .history_values import parse_record, usable_values

MAX_SHOWN_NAMES = 3
MIN_LINE_BYTES = 256
"""Bytes for which a shorter line counts, as each line takes time."""
VALUES_SHARE = 0.6
"""Bytes for which a byte of values in memory counts.

With numbers whose names occur once, which need more than twice the memory that is estimated, the
history with the most values stays below 1 GiB.
"""
_FOUR_BYTES = 0xF0
"""First byte of a character of four bytes in UTF-8."""
_NAME = re.compile(r"metrics\.e([0-9]{1,15})\.jsonl")


@dataclass(slots=True)
class History:
    """The records of all attempts, as far as they are usable."""

    steps: list[Record] = field(default_factory=list)
    """One record per step, in order; for a repeated step, the record of the newest epoch."""
    events: list[Record] = field(default_factory=list)
    """Events such as starts, resumes, checkpoints and ends, in the order of epochs."""
    invalid: int = 0
    """Number of lines that are left out, wholly or in part, and of unreadable files."""
    first_problem: str = ""
    """File, line and problem of the first of them."""

    @property
    def problem(self) -> str:
        """What the history lacks, as one sentence; "" if nothing."""
        if not self.invalid:
            return ""
        lines = "1 line or file" if self.invalid == 1 else f"{self.invalid:,} lines or files"
        return f"{lines} of the history cannot be used: {self.first_problem}"

    def add_problem(self, problem: str) -> None:
        """Count a line or file that cannot be used."""
        self.invalid += 1
        self.first_problem = self.first_problem or problem


def history_file(log_dir: Path, epoch: int) -> Path:
    """Return the file written by the attempt that holds this fencing epoch."""
    return log_dir / f"metrics.e{epoch}.jsonl"


def read_history(log_dir: Path) -> list[Record]:
    """Return `History.steps`."""
    return read_records(log_dir).steps


def read_events(log_dir: Path) -> list[Record]:
    """Return `History.events`."""
    return read_records(log_dir).events


def read_records(log_dir: Path) -> History:
    """Return the history in a log folder; what cannot be used is counted, not raised."""
    history = History()
    steps: dict[int, Record] = {}
    remaining = MAX_HISTORY_BYTES
    for epoch, path in sorted(_files(log_dir)):
        for number, line in enumerate(_lines(path, history), 1):
            remaining -= max(MIN_LINE_BYTES, len(line), _memory(line))
            if remaining < 0:
                limit = f"{MAX_HISTORY_BYTES:,} bytes or too many lines or values"
                history.add_problem(f"{path.name}: the history has more than {limit}")
                break
            record = _record(line, epoch, f"{path.name}, line {number}", history)
            if "event" in record:
                history.events.append(record)
            elif record and record["epoch"] >= steps.get(record["step"], record)["epoch"]:
                steps[record["step"]] = record
    history.events.sort(key=itemgetter("epoch"))
    history.steps = [steps[step] for step in sorted(steps)]
    return history


def _memory(line: bytes) -> int:
    """Return the bytes for which the values of a line count.

    Python stores a text with one character beyond U+FFFF in 4 bytes per character.
    """
    values = VALUES_SHARE * json_memory(line)
    is_wide = max(line, default=0) >= _FOUR_BYTES or b"\\ud" in line.lower()
    return int(values + len(line) if is_wide else values)


def _files(log_dir: Path) -> list[tuple[int, Path]]:
    return [(int(m[1]), path) for path in log_dir.glob("*") if (m := _NAME.fullmatch(path.name))]


def _lines(path: Path, history: History) -> Iterator[bytes]:
    try:
        require_own_file(path)
        with open_regular(path) as file:
            yield from limited_lines(file, MAX_RECORD_BYTES)
    except OSError as error:
        history.add_problem(f"{path.name}: {error.strerror}")


def _record(line: bytes, epoch: int, place: str, history: History) -> Record:
    """Return the usable values of a line, or {}; count the line if some values are not usable.

    A line without end is that of a killed writer and is not counted.
    """
    try:
        record = parse_record(line)
    except ValueError as error:
        if line.endswith(b"\n"):
            history.add_problem(f"{place}: {error}")
        return {}
    usable, wrong = usable_values({"epoch": epoch, "attempt": 0, **record})
    if wrong:
        names = ", ".join(repr(name)[:40] for name in wrong[:MAX_SHOWN_NAMES])
        history.add_problem(f"{place}: unusable values of {names}")
    return usable
