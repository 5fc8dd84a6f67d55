from pathlib import Path
from typing import Any

import pytest

from raggrpo_trainer.engines.engine_options import engine_options
from support.builders.trainer.policies import write_model
from support.builders.trainer.reports import make_config


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    return engine_options(make_config(folder, changes), "FP32").arguments()


@pytest.mark.row("A3")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_chunked_prefill_is_off_on_cpu(tmp_path: Path, is_enabled: bool) -> None:
    changes = {
        "model.path": str(write_model(tmp_path)),
        "resources": {"device": "CPU"},
        "rollout.enableChunkedPrefill": is_enabled,
    }
    assert arguments(tmp_path, **changes)["enable_chunked_prefill"] is False


@pytest.mark.row("A3")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_chunked_prefill_follows_spec_on_gpu(tmp_path: Path, is_enabled: bool) -> None:
    changes = {"rollout.enableChunkedPrefill": is_enabled}
    assert arguments(tmp_path, **changes)["enable_chunked_prefill"] is is_enabled
