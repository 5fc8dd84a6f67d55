"""Builders of jobs, from a small valid job and changes."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.core.spec.yaml_text import read_yaml

SAMPLES = sorted((Path(__file__).parents[4] / "crds" / "samples").glob("*.yaml"))

REMOVED = object()
"""Value that removes a field from the job."""

KNOWN_7B = Facts(
    parameters=7_600_000_000, layers=28, hidden_size=3584, heads=28, kv_heads=4, head_size=128,
    mlp_size=18_944, vocabulary=152_064, context_length=32_768, rows=10_000, ray_version="2.60.0",
)  # fmt: skip
KNOWN_TINY = Facts(
    parameters=560_000, layers=3, hidden_size=128, heads=4, kv_heads=4, head_size=32,
    vocabulary=260, context_length=2048, rows=8000, ray_version="2.60.0",
)  # fmt: skip

_SMALL: dict[str, Any] = {
    "apiVersion": "raggrpo.io/v1alpha1",
    "kind": "RagGrpoJob",
    "metadata": {"name": "small", "uid": "5f1d"},
    "spec": {
        "model": {"path": "/mnt/runs/model"},
        "data": {"trainFiles": ["/mnt/runs/train.jsonl"]},
        "training": {"totalSteps": 1000},
        "checkpoint": {"path": "/mnt/runs/checkpoints"},
        "resources": {"gpusPerNode": 1, "gpuMemoryGib": 80},
        "volumes": [{"name": "work", "claimName": "work", "mountPath": "/mnt/runs"}],
    },
}


def make_manifest(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    kind = {"apiVersion": "raggrpo.io/v1alpha1", "kind": "RagGrpoJob"}
    return {**kind, "metadata": {"name": name}, "spec": dict(spec)}


def data_of(file: Path | str, *, batch: int, prompt: int, response: int) -> dict[str, Any]:
    lengths = {"maxPromptLength": prompt, "maxResponseLength": response}
    return {"trainFiles": [str(file)], "trainBatchSize": batch, **lengths}


def make_raw_job(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a job as parsed YAML; keys are paths such as `spec.data.trainFiles`."""
    return changed(_SMALL, changes or {})


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a raw job with values set or removed at their paths."""
    copied: dict[str, Any] = copy.deepcopy(dict(raw))
    for place, value in changes.items():
        *parents, last = place.split(".")
        target = copied
        for name in parents:
            target = target.setdefault(name, {})
        if value is REMOVED:
            target.pop(last, None)
        else:
            target[last] = copy.deepcopy(value)
    return copied


def make_job(changes: Mapping[str, Any] | None = None) -> RagGrpoJob:
    """Return a parsed job; keys are paths below `spec`, such as `rollout.n`."""
    job = parse_job(make_raw_job({f"spec.{place}": v for place, v in (changes or {}).items()}))
    assert isinstance(job, RagGrpoJob), "\n".join(map(str, job))
    return job


def make_trainer_config(changes: Mapping[str, Any] | None = None) -> TrainerConfig:
    """Return the trainer configuration of the first attempt of a job with changes."""
    job = make_job(changes)
    return trainer_config(job, resolve(job), number=1)


def make_sample(path: Path) -> RagGrpoJob:
    job = parse_job(read_yaml(path.read_text()))
    assert isinstance(job, RagGrpoJob), "\n".join(map(str, job))
    return job
