from pathlib import Path
from typing import Any

import pytest

from raggrpo_trainer.engines.engine_options import engine_options
from support.builders.trainer.policies import write_model
from support.builders.trainer.reports import make_config


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    return engine_options(make_config(folder, changes), "FP32").arguments()


@pytest.mark.row("A3")
@pytest.mark.parametrize("wanted", [True, False])
def test_an_engine_on_cpu_never_chunks_its_prefill(tmp_path: Path, wanted: bool) -> None:
    given = {
        "model.path": str(write_model(tmp_path)),
        "resources": {"device": "CPU"},
        "rollout.enableChunkedPrefill": wanted,
    }
    assert arguments(tmp_path, **given)["enable_chunked_prefill"] is False


@pytest.mark.row("A3")
@pytest.mark.parametrize("wanted", [True, False])
def test_an_engine_on_gpu_chunks_its_prefill_as_the_job_says(tmp_path: Path, wanted: bool) -> None:
    given = {"rollout.enableChunkedPrefill": wanted}
    assert arguments(tmp_path, **given)["enable_chunked_prefill"] is wanted
