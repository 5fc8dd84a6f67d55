"""Starts runs side by side and interrupts each while it starts: nothing else may end one.

    PYTHONPATH=tests python tests/local/drills/interrupted_starts.py [--count 300] [--at-once 3]

Each run is struck by Ctrl-C at a random moment between the attempt's submission and a few seconds
later, and must tell of nothing but that. What else ended one is printed with the head's log.
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

SECONDS = 15.0
"""By then the driver has connected to the head and ranks and engines begin, on busy cores, too."""
SUSPENDED = ["Suspended"]


def interrupted(run: Run, after: float) -> list[str]:
    """Start a run and interrupt it so many seconds after its submission; return what ended it."""
    process = run.start()
    run.wait_for(lambda s: s.get("phase") == "Starting" or bool(s.get("attempts")), "a start")
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    return [each["cause"] for each in run.status().get("attempts", [])] + run.left_over()


def main() -> int:
    """Interrupt so many runs; 1 when one of them told of something else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-starts-"))
    counted: Counter[str] = Counter()

    def one(run: Run) -> None:
        try:
            ends = interrupted(run, random.uniform(0, SECONDS))
        except AssertionError as failure:
            ends = [str(failure)]
        counted[" + ".join(ends)] += 1
        if ends != SUSPENDED:
            print(f"{ends}\n{run.log()[-2000:]}", flush=True)

    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(one, [Run(folder / str(number)) for number in range(given.count)]))
    shutil.rmtree(folder)
    print(", ".join(f"{count} {ends}" for ends, count in counted.items()))
    return int([*counted] != [*SUSPENDED])


if __name__ == "__main__":
    sys.exit(main())
