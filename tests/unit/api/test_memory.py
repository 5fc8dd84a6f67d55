from pathlib import Path

import pytest

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import GIB, MIB
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_trainer.engines.engine_options import engine_options
from raggrpo_trainer.preflight.model import check_model
from support.builders.operator.jobs import make_job
from support.builders.trainer.policies import write_model

PER_NUMBER = 2 * 2 * 2 * 16  # keys and values × layers × heads × head size


@pytest.mark.parametrize(
    ("precision", "changes", "expected"),
    [
        ("FP32", {}, 256 * 1536 * PER_NUMBER * 4),
        ("BF16", {}, 256 * 1536 * PER_NUMBER * 2),
        ("FP32", {"data.trainBatchSize": 64}, 64 * 3 * 1536 * PER_NUMBER * 4),
        ("FP32", {"rollout.maxNumSeqs": 8}, 64 * MIB),
        ("FP32", {"data.maxPromptLength": 30_000}, 2 * GIB),
    ],
)
def test_planned_cpu_kv_cache_equals_engine_argument(
    tmp_path: Path, precision: str, changes: dict[str, object], expected: int
) -> None:
    model = write_model(tmp_path)
    given = {"resources": {"device": "CPU"}, "training.precision": precision}
    job = make_job({"model.path": str(model)} | given | changes)
    resolved = resolve(job)
    options = engine_options(trainer_config(job, resolved, number=1), precision)
    planned = gpu_memory.cpu_kv_cache(resolved.spec, check_model(model).facts)

    assert planned == options.arguments()["kv_cache_memory_bytes"] == expected
