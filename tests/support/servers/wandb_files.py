"""Reader of W&B run files: a header of 7 bytes, then protobuf records in LevelDB's log format."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER, BLOCK, FRAME = 7, 32 * 1024, struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = range(1, 5)


@dataclass
class OfflineRun:
    run_id: str = ""
    project: str = ""
    name: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Logged points in order, without W&B's own fields."""


def offline_run(log_dir: Path) -> OfflineRun:
    from wandb.proto.wandb_internal_pb2 import Record

    offline = OfflineRun()
    for data in _records(max(log_dir.glob("wandb/offline-run-*/*.wandb")).read_bytes()):
        record = Record.FromString(data)
        if record.HasField("run"):
            run = record.run
            offline.run_id, offline.project, offline.name = (
                run.run_id,
                run.project,
                run.display_name,
            )
        if record.HasField("history"):
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            offline.history.append({k: v for k, v in items.items() if not k.startswith("_")})
    return offline


def _records(content: bytes) -> Iterator[bytes]:
    assert content.startswith(b":W&B")
    place, parts = HEADER, b""
    while place + FRAME.size <= len(content):
        if BLOCK - place % BLOCK < FRAME.size:
            place += BLOCK - place % BLOCK  # no frame starts in the last bytes of a block
            continue
        _, length, kind = FRAME.unpack_from(content, place)
        place += FRAME.size
        parts += content[place : place + length]
        place += length
        if kind in (FULL, LAST):
            yield parts
            parts = b""
