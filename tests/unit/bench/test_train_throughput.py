"""`train_throughput`: results of a comparison whose later system fails, and its environment."""

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench.training import train_throughput as bench


def test_failed_system_leaves_logs_and_results_of_earlier_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(name: str, work: Any, inputs: Path, url: str, folder: Path, changes: Any) -> Any:
        folder.mkdir()
        (folder / "run.log").write_text(f"{name} ran")
        if name == "trl":
            raise RuntimeError("out of memory")
        return bench.Measured([1.0], 8.0, 0.1, 2**30, {"train": 0.5})

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "write_model", lambda *_: 1000)
    monkeypatch.setattr(bench, "write_prompts", lambda *_: None)
    monkeypatch.setattr(bench, "judge", lambda _: nullcontext("http://localhost"))
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--keep", str(tmp_path)])

    with pytest.raises(RuntimeError, match="out of memory"):
        bench.main()

    result: Mapping[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert [*result["systems"]] == ["ours"]
    assert result["ratios"] == {}
    assert (tmp_path / "trl-0" / "run.log").read_text() == "trl ran"


def test_systems_on_a_gpu_do_not_import_flashinfer() -> None:
    assert bench.environment("GPU")["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
