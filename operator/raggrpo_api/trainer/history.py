"""The training history on disk, `<log dir>/metrics.e<epoch>.jsonl`.

Each attempt writes its own file. A line is a step (`step` and numbers) or an event (`event` and
its fields), with `time`, `epoch` and `attempt`. Imports only the standard library.
"""

import json
import re
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_NAME = re.compile(r"metrics\.e(\d+)\.jsonl")


def history_file(log_dir: Path, epoch: int) -> Path:
    """Return the file written by the attempt that holds this fencing epoch."""
    return log_dir / f"metrics.e{epoch}.jsonl"


def read_history(log_dir: Path) -> list[Record]:
    """Return one record per step, in order; for a repeated step, the record of the newest epoch."""
    return read_records(log_dir)[0]


def read_records(log_dir: Path) -> tuple[list[Record], list[Record]]:
    """Return the results of `read_history` and `read_events`, but read the files only once."""
    records = _records(log_dir)
    steps = {r["step"]: r for r in records if "event" not in r}
    return [steps[step] for step in sorted(steps)], [r for r in records if "event" in r]


def read_events(log_dir: Path) -> list[Record]:
    """Return the events of all attempts, such as starts, resumes, checkpoints and ends."""
    return [r for r in _records(log_dir) if "event" in r]


def _records(log_dir: Path) -> list[Record]:
    files = [(int(m[1]), path) for path in log_dir.glob("*") if (m := _NAME.fullmatch(path.name))]
    lines = [line for _, path in sorted(files) for line in path.read_bytes().split(b"\n")]
    return [record for line in lines if (record := _parsed(line)) is not None]


def _parsed(line: bytes) -> Record | None:
    """Return the record of a line, or None for a truncated line of a killed writer."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
