"""Time from `raggrpo run` to the end of the first step, by stage, on one machine.

    PYTHONPATH=tests .venv/bin/python tests/bench/recovery/start_up.py [--runs 5]

Each run is the drill job (real Ray, vLLM, FSDP2 and retrieval with a tiny model) in a new folder. A
first run warms the file cache and is not counted.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench.recovery.driver_recovery import records
from bench.recovery.recovery_phases import moment, stages_of, steps_of
from local.drills.drill import Run
from raggrpo_api.trainer.progress import Stage

STAGES = ("preflight", "head", "driver", "loaded", "engines", "step")
"""End of each stage. preflight: all checks passed; head: the Ray head accepts an attempt; driver:
the checkpoint folder is claimed and Ray is connected; loaded: the rank has loaded the model;
engines: the engine has loaded it, too; step: the first step is done, after weight sync, self-check
and warm-up."""


def measure(run: Run) -> dict[str, float]:
    """Return the seconds of each stage of a fresh run."""
    start = time.time()
    process = run.start("", "training.totalSteps=2")
    run.wait_for(lambda s: s.get("phase") not in (None, "Pending", "Preflight"), "preflight's end")
    checked = time.time()
    run.wait_for(lambda s: bool(s.get("attempt")), "an attempt")
    submitted = time.time()
    run.finish(process)
    history = records(run)
    stages = stages_of(history)
    ends = [
        checked,
        submitted,
        stages["start"],
        stages[Stage.STARTING_ROLLOUT],
        stages[Stage.WARMING_RETRIEVAL],
        moment(steps_of(history)[0]),
    ]
    seconds = [b - a for a, b in pairwise([start, *ends])]
    return dict(zip(STAGES, seconds, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-bench-"))
    try:
        durations = [measure(Run(folder / str(number))) for number in range(runs + 1)][1:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("to the first step" + "".join(f"{stage:>11}" for stage in STAGES))
    for each in durations:
        print(f"{sum(each.values()):17.1f}" + "".join(f"{each[s]:11.1f}" for s in STAGES))
    print(f"median {statistics.median(sum(each.values()) for each in durations):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
