"""A rank killed by the memory monitor of a real Ray."""

import os
import subprocess
import sys
import tempfile

ATTEMPT = """
import asyncio, sys, time
import ray
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.ranks.ranks import Ranks

class Rank:
    def save(self, epoch, folder, **options):
        time.sleep(600)

    load = save

def report(work):
    try:
        work()
    except TrainerError as error:
        print(error.exit_code.name, flush=True)

ray.init(num_cpus=1, object_store_memory=80 * 1024**2, include_dashboard=False,
         log_to_driver=False, _temp_dir=sys.argv[1])
ranks = Ranks([ray.remote(Rank).remote()], 1)
report(lambda: ranks.save("nowhere"))
report(lambda: asyncio.run(ranks.load("nowhere")))
ray.shutdown()
"""
EVERY_PROCESS_IS_TOO_LARGE = {
    "RAY_memory_usage_threshold": "0.001",
    "RAY_memory_monitor_refresh_ms": "100",
    "RAY_AUTH_MODE": "disabled",
}


def test_rank_killed_by_ray_memory_monitor_is_reported_as_out_of_memory() -> None:
    # Ray's socket paths must be shorter than pytest's folders allow.
    with tempfile.TemporaryDirectory(prefix="raggrpo-") as folder:
        ended = subprocess.run(
            [sys.executable, "-c", ATTEMPT, folder],
            env={**os.environ, **EVERY_PROCESS_IS_TOO_LARGE},
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.stdout.splitlines() == ["HOST_OUT_OF_MEMORY"] * 2, ended.stderr
