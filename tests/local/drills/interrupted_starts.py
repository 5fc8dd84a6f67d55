"""Interrupt parallel runs during start-up and report any other cause of their end.

    PYTHONPATH=tests python tests/local/drills/interrupted_starts.py [--count 300] [--at-once 3]

Each run receives SIGINT at a random moment within INTERRUPT_SECONDS of its submission and must
report only the suspension. Other causes are printed with the log of the run.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local.drills.drill import Run

INTERRUPT_SECONDS = 15.0
"""Time in which the driver connects to the head and starts ranks and engines, on busy CPUs too."""
SUSPENDED = ["Suspended"]


def interrupted(run: Run, after: float) -> list[str]:
    """Interrupt a run `after` seconds after its submission; return causes and leftovers."""
    process = run.start()
    run.wait_for(lambda s: s.get("phase") == "Starting" or bool(s.get("attempts")), "a start")
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    return [each["cause"] for each in run.status().get("attempts", [])] + run.left_over()


def main() -> int:
    """Return 1 if a run ended for another reason than its interruption."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-starts-"))
    counted: Counter[str] = Counter()

    def one(run: Run) -> None:
        try:
            ends = interrupted(run, random.uniform(0, INTERRUPT_SECONDS))
        except AssertionError as failure:
            ends = [str(failure)]
        counted[" + ".join(ends)] += 1
        if ends != SUSPENDED:
            print(f"{ends}\n{run.log()[-2000:]}", flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(one, [Run(folder / str(number)) for number in range(options.count)]))
    shutil.rmtree(folder)
    print(", ".join(f"{count} {ends}" for ends, count in counted.items()))
    return int([*counted] != [*SUSPENDED])


if __name__ == "__main__":
    sys.exit(main())
