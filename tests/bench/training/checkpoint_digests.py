"""Measure how much of a save the digests take: saves of one rank, with and without them, in turn.

python tests/bench/training/checkpoint_digests.py FOLDER [GIB]
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from raggrpo_trainer.checkpoint.file_digests import check_digests, stored_files
from raggrpo_trainer.checkpoint.folder import sync_tree
from raggrpo_trainer.checkpoint.hashing_save import save_hashed

ROUNDS = 5
TENSOR_BYTES = 64 * 2**20


def main(folder: Path, gib: float) -> None:
    count = int(gib * 2**30 / TENSOR_BYTES)
    state = {"model": {f"w{i}": torch.randn(TENSOR_BYTES // 4) for i in range(count)}}
    writers: dict[str, Callable[[Path], Any]] = {
        "without digests": lambda at: save(state, checkpoint_id=at),
        "with digests": lambda at: save_hashed(state, at),
    }
    for _ in range(ROUNDS):
        for title, write in writers.items():
            wall, cpu = _seconds(folder / "saved", write)
            print(f"{title}: {wall:.2f} s, of which {cpu:.2f} s of processor time")
    files = stored_files(folder / "saved", {})
    wall, cpu = _seconds(folder / "saved", lambda at: check_digests(at, files))
    print(f"check: {wall:.2f} s, of which {cpu:.2f} s of processor time")


def _seconds(folder: Path, work: Callable[[Path], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work(folder)
    sync_tree(folder)
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
