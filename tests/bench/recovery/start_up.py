"""Seconds from `raggrpo run` to the end of its first step, stage by stage, on one machine.

    PYTHONPATH=tests .venv/bin/python tests/bench/recovery/start_up.py [--runs 5]

Each run is the drills' job (real Ray, vLLM, FSDP2 and retrieval with a tiny model) in a fresh
folder. Files are cached: one run before those that count is thrown away.
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
"""Preflight: all checks passed; head: Ray's takes an attempt; driver: it holds the checkpoint
folder and is connected to Ray; loaded: the rank holds the model; engines: the engine has it, too;
step: the first one is done, after a weight sync, a self-check and the retriever's warm-up."""


def started(run: Run) -> dict[str, float]:
    """Return the seconds of each stage of a fresh run."""
    began = time.time()
    process = run.start("", "training.totalSteps=2")
    run.wait_for(lambda s: s.get("phase") not in (None, "Pending", "Preflight"), "preflight's end")
    checked = time.time()
    run.wait_for(lambda s: bool(s.get("attempt")), "an attempt")
    submitted = time.time()
    run.finish(process)
    told = records(run)
    stages = stages_of(told)
    ends = [
        checked,
        submitted,
        stages["start"],
        stages[Stage.STARTING_ROLLOUT],
        stages[Stage.WARMING_RETRIEVAL],
        moment(steps_of(told)[0]),
    ]
    lasted = [end - begin for begin, end in pairwise([began, *ends])]
    return dict(zip(STAGES, lasted, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-bench-"))
    try:
        found = [started(Run(folder / str(number))) for number in range(runs + 1)][1:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("to the first step" + "".join(f"{stage:>11}" for stage in STAGES))
    for each in found:
        print(f"{sum(each.values()):17.1f}" + "".join(f"{each[s]:11.1f}" for s in STAGES))
    print(f"median {statistics.median(sum(each.values()) for each in found):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
