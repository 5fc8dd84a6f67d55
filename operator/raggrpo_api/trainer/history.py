"""The training history on disk, `<log dir>/metrics.e<epoch>.jsonl`; standard library only.

Each attempt writes its own file. A line is a step (`step` and numbers) or an event (`event` and
its fields); both carry `time`, `epoch` and `attempt`.
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
    """Return each step once, in order; the newest epoch's record of a repeated step wins."""
    steps = {r["step"]: r for r in _records(log_dir) if "event" not in r}
    return [steps[step] for step in sorted(steps)]


def read_events(log_dir: Path) -> list[Record]:
    """Return all attempts' events: starts, stages, resumes, checkpoints, validations, ends."""
    return [r for r in _records(log_dir) if "event" in r]


def _records(log_dir: Path) -> list[Record]:
    found = [(int(m[1]), path) for path in log_dir.glob("*") if (m := _NAME.fullmatch(path.name))]
    lines = [line for _, path in sorted(found) for line in path.read_bytes().split(b"\n")]
    return [record for line in lines if (record := _parsed(line)) is not None]


def _parsed(line: bytes) -> Record | None:
    """Return a line's record, or None for a line cut short when its writer was killed."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
