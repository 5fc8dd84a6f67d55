"""GPUs that a real Ray assigns to ranks and engines; the GPUs are faked."""

import json
import os
import subprocess
import sys
import tempfile

import pytest

JOB = """
import asyncio, json, os, sys
from pathlib import Path
import ray
from raggrpo_trainer.host.placement import Placement
from support.builders.trainer.reports import make_config

GPUS = 3

class Process:
    def gpu(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]

def start(count, share, strategy):
    actors = [
        ray.remote(Process).options(
            num_cpus=0, num_gpus=share, scheduling_strategy=strategy(i)).remote()
        for i in range(count)
    ]
    gpus = [ray.get(actor.gpu.remote(), timeout=20) for actor in actors]
    return actors, gpus

ray.init(num_cpus=32, num_gpus=GPUS, object_store_memory=80 * 1024**2, include_dashboard=False,
         log_to_driver=False, _temp_dir=sys.argv[1])
config = make_config(Path(sys.argv[1]), {"resources.device": "GPU", "resources.gpusPerNode": GPUS})
world = config.world
placement = asyncio.run(Placement.obtain(config))
_, ranks = start(world.num_ranks, world.gpus_per_rank, placement.for_rank)
_, engines = start(world.num_engines, world.gpus_per_engine, placement.for_engine)
print(json.dumps([ranks, engines]))
ray.shutdown()
"""


@pytest.mark.row("C12")
def test_each_gpu_has_one_colocated_rank_and_one_engine() -> None:
    # Ray's socket paths must be shorter than pytest's folders allow.
    with tempfile.TemporaryDirectory(prefix="raggrpo-") as folder:
        ended = subprocess.run(
            [sys.executable, "-c", JOB, folder],
            env={
                **os.environ,
                "RAY_AUTH_MODE": "disabled",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.returncode == 0, ended.stderr
    ranks, engines = json.loads(ended.stdout.splitlines()[-1])
    assert sorted(ranks) == sorted(engines) == ["0", "1", "2"]
