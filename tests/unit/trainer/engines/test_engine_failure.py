"""Reason of an engine's exit, which only the output of its core process contains."""

import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_trainer.engines.engine_failure import (
    EngineDead,
    Output,
    as_engine_dead,
    failure_reason,
)
from raggrpo_trainer.host.out_of_memory import out_of_memory_in_text

LINE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
CORE = f"print('(EngineCore pid=7) {LINE}', flush=True)"
ACTOR = f"""
import subprocess, sys
from raggrpo_trainer.engines.engine_failure import EngineDead, as_engine_dead, own_outputs
print("{LINE} but long ago", flush=True)
outputs = own_outputs()
for core in ("pass", sys.argv[1]):
    subprocess.run([sys.executable, "-c", core], check=True)
    try:
        with as_engine_dead(outputs, ValueError):
            raise ValueError("EngineCore encountered an issue. See stack trace (above).")
    except EngineDead as dead:
        print("reason:", dead.reason, file=sys.stderr, flush=True)
"""


def test_engine_failure_reason_is_read_from_engine_core_output(tmp_path: Path) -> None:
    with (tmp_path / "worker.out").open("wb") as out, (tmp_path / "worker.err").open("wb") as err:
        subprocess.run([sys.executable, "-c", ACTOR, CORE], stdout=out, stderr=err, check=True)

    before, after = (tmp_path / "worker.err").read_text().splitlines()
    assert before == "reason: ValueError: EngineCore encountered an issue. See stack trace (above)."
    assert after == f"reason: (EngineCore pid=7) {LINE}"
    assert out_of_memory_in_text(after) is not None


def test_engine_failure_reason_falls_back_to_error_message(tmp_path: Path) -> None:
    gone = [Output(tmp_path / "gone", 0)]
    assert failure_reason(RuntimeError("x"), gone) == "RuntimeError: x"


def test_unrelated_errors_are_not_converted_to_engine_dead() -> None:
    with pytest.raises(KeyError), as_engine_dead([], ValueError):
        raise KeyError
    with pytest.raises(EngineDead, match=r"^first$"), as_engine_dead([], Exception):
        raise EngineDead("first")
