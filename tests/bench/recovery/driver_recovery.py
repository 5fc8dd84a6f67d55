"""Time from the SIGKILL of a driver to the end of the job's next new step, on one machine.

    PYTHONPATH=tests .venv/bin/python tests/bench/recovery/driver_recovery.py [--kills 5]

Kills the driver of the drill job (real Ray, vLLM, FSDP2 and retrieval) repeatedly. Phases are those
of `recovery_phases.py`; the status of the run is polled every 50 ms. A step that the ranks finish
without a driver is not lost, but does not count as the next one.
"""

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.recovery.recovery_phases import PHASES, Fault, Recovery, has_recovered, parsed, recovery
from local.drills.drill import Run
from raggrpo_api.trainer.history import Record

FEATURE_ROWS = ("G5",)
"""Rows of docs/features.md that this benchmark measures."""
STEPS_BETWEEN = 3
STEPS_EACH = 40
"""Steps per attempt; more than are trained before the kill."""
TARGET = "spec.training.totalSteps={}"


def records(run: Run) -> list[Record]:
    return [
        each for log in run.dir.parent.rglob("metrics.*.jsonl") for each in parsed(log.read_text())
    ]


def trained(status: dict[str, Any]) -> int:
    """Return the number of steps trained by the newest attempt."""
    newest = status["attempts"][0]
    first = newest.get("fromStep")
    return 0 if first is None else int(newest["toStep"] - first)


def kill_driver(run: Run, number: int) -> Recovery:
    """Kill the driver of this attempt once it has trained, and wait for a new step."""
    run.wait_for(
        lambda s: s.get("attempt") == number and trained(s) >= STEPS_BETWEEN,
        f"steps of attempt {number}",
    )
    # Randomized, so that the kill does not always follow a poll of the run.
    time.sleep(random.uniform(0.0, 1.0))
    epoch = max(each["epoch"] for each in records(run))
    run.victim("driver").kill()
    at = time.time()
    run.wait_for(lambda s: s["attempts"][-number].get("cause"), "its end")
    noticed = time.time()
    run.wait_for(lambda s: s["attempt"] == number + 1, "the next attempt")
    submitted = time.time()
    run.wait_for(lambda _: has_recovered(records(run), epoch), "a new step")
    return recovery(records(run), Fault(at, epoch, noticed, submitted))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    kills = parser.parse_args().kills
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-bench-"))
    run = Run(folder / "run")
    process = run.start("", TARGET.format((kills + 1) * STEPS_EACH))
    try:
        recoveries = [kill_driver(run, number) for number in range(1, kills + 1)]
        run.finish(process)
    finally:
        process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    print("seconds   " + "".join(f"{phase:>10}" for phase in PHASES) + "  lost steps")
    for each in recoveries:
        phases = "".join(f"{each.phases.get(phase, 0.0):10.2f}" for phase in PHASES)
        print(f"{each.new_step_seconds:7.2f}   {phases}{each.repeated:12}")
    print(f"median {statistics.median(each.new_step_seconds for each in recoveries):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
