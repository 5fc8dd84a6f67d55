"""Logprobs of the real engine and of a policy with adapters, after each update."""

from pathlib import Path
from statistics import fmean

import pytest

from support.engines.lora_parity import measure

MAX_NATS = 1e-5
"""Maximum mean difference in FP32."""
BF16_FACTOR = 1.2
"""Maximum mean difference in BF16, relative to that of full training."""


@pytest.mark.row("F1")
@pytest.mark.timeout(600)
def test_exported_adapter_in_vllm_has_logprobs_of_policy(tmp_path: Path) -> None:
    before, *exports = measure(tmp_path, "FP32", "adapter")
    assert before["mean"] <= MAX_NATS
    assert all(each["mean"] <= MAX_NATS for each in exports), exports
    assert all(each["change"] >= 1000 * MAX_NATS for each in exports), exports


@pytest.mark.row("F1")
@pytest.mark.timeout(1200)
def test_bf16_mismatch_with_adapters_is_that_of_full_training(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "merged").mkdir()
    full, merged = (
        fmean(each["mean"] for each in measure(tmp_path / mode, "BF16", mode)[1:])
        for mode in ("full", "merged")
    )
    assert 0 < merged <= BF16_FACTOR * full
