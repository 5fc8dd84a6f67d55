"""Model families with special heads or layers, in the real engine before and after weight sync."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.row("D2")
@pytest.mark.long
@pytest.mark.parametrize("model_type", ["qwen3_moe", "olmoe", "granite", "cohere", "gemma2"])
def test_engine_logprobs_match_trainer_for_each_model_family(
    model_type: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "support.engines.engine_parity", model_type, str(tmp_path)]
    tests = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tests}".strip(":")}
    child = subprocess.run(command, capture_output=True, text=True, env=env, timeout=200)
    assert child.returncode == 0, child.stderr[-2000:]
    before, after = map(float, child.stdout.split()[-2:])
    assert max(before, after) <= 1e-4
