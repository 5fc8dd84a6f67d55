import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.driver.failure import to_failure
from raggrpo_trainer.driver.inputs import read_inputs
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.preflight import make_fit_config


def test_driver_starts_without_slow_imports() -> None:
    code = (
        "import sys, raggrpo_trainer.driver.attempt\n"
        "print(sorted({'torch', 'transformers', 'vllm'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "code", "short_of"),
    [
        (TrainerError(ExitCode.CUDA_OUT_OF_MEMORY, "x", Shortage.STEP), 10, "Step"),
        (MemoryError(), ExitCode.HOST_OUT_OF_MEMORY, "HeadHost"),
        (RuntimeError("frames\n" * 500 + "CUDA out of memory. Tried to"), 10, ""),
        (ValueError("no"), ExitCode.PROGRAM_ERROR, ""),
    ],
)
def test_failure_reports_out_of_memory_resource(error: Exception, code: int, short_of: str) -> None:
    failure = to_failure(error)
    assert (failure.exit_code, failure.short_of) == (code, short_of)
    assert failure.message


def test_trainer_error_is_unchanged_by_pickling() -> None:
    sent = TrainerError(ExitCode.CUDA_OUT_OF_MEMORY, "words", Shortage.STEP)
    got = pickle.loads(pickle.dumps(sent))
    assert (got.exit_code, str(got), got.short_of) == (10, "words", Shortage.STEP)


@pytest.mark.row("A6")
def test_prompts_are_read_from_staged_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "local"))
    config = make_fit_config(tmp_path, {"data.stageToLocalDisk": True})
    source = Path(config.data.train_files[0])

    _, prompts, _, _ = read_inputs(config)
    [copy] = [each for each in (tmp_path / "local/raggrpo-data").rglob("*") if each.is_file()]

    assert len(prompts) == 20
    assert copy.read_bytes() == source.read_bytes()
