"""The workload as a RagGrpoJob with one rank and one engine, on CPU or on one GPU."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.training.workload import Workload

THREADS = len(os.sched_getaffinity(0))
"""Threads of every system: all CPUs of this process."""
CLAIM = "bench"
"""Claim of the folder of a GPU job, which requires a volume; `--mount` replaces the claim."""
MOUNT = "/mnt/bench"


def job_of(work: Workload, inputs: Path, folder: Path, reward: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job; its run writes below `folder`."""
    on_gpu = work.device == "GPU"
    volume = {"name": CLAIM, "claimName": CLAIM, "mountPath": MOUNT}
    return {
        "apiVersion": "raggrpo.io/v1alpha1",
        "kind": "RagGrpoJob",
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"path": str(inputs / "model")},
            "data": {
                "trainFiles": [str(inputs / "train.jsonl")],
                "trainBatchSize": work.prompts,
                "maxPromptLength": work.prompt_tokens,
                "maxResponseLength": work.response_tokens,
            },
            "algorithm": {"groupSize": work.n, "lossAggregation": "TokenMean"},
            "rollout": {"n": work.n, "temperature": 1.0},
            "training": {
                "totalSteps": work.total_steps,
                "learningRate": work.learning_rate,
                "precision": work.precision,
            },
            "reward": {"functions": [dict(reward)]},
            "checkpoint": {
                "path": f"{MOUNT if on_gpu else folder}/checkpoints",
                "everySteps": work.total_steps,  # after the last counted step
            },
            "monitoring": {"mode": "Light"},
            "resources": {"device": work.device, "cpu": str(THREADS)},
            "volumes": [volume] if on_gpu else [],
        },
    }
