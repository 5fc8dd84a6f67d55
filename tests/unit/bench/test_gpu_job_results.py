"""Results of `python -m gpu.job` that make a run with injected faults fail."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save

from gpu.job.runs import (
    EXPORT,
    GPU_DIFFERENCE,
    LEARNING_RATE,
    QUICKSTART,
    RUNS,
    UNDISTURBED,
    killed_values,
    kills_error,
    no_error,
    shortage_error,
)


def test_runs_with_faults_are_checked() -> None:
    checks = {run.step: run.error_in for run in RUNS if run.error_in is not no_error}
    assert checks == {"e": shortage_error, "f": kills_error}


def test_difference_on_a_gpu_depends_on_the_learning_rate_of_the_quickstart() -> None:
    job = yaml.safe_load(QUICKSTART.read_text())
    assert job["spec"]["training"]["learningRate"] == LEARNING_RATE


SHORTAGE_ERRORS = {
    "recovered": ({}, ""),
    "no shortage": (
        {"causes": ["Succeeded"]},
        "no attempt ended with CudaOutOfMemory: Succeeded",
    ),
    "no mitigation": (
        {"mitigations": ""},
        "the last attempt had no mitigation: CudaOutOfMemory, Succeeded",
    ),
    "failed": (
        {"phase": "Failed", "causes": ["CudaOutOfMemory", "CudaOutOfMemory"]},
        "the job ended Failed: CudaOutOfMemory, CudaOutOfMemory",
    ),
}


@pytest.mark.parametrize(("changes", "error"), SHORTAGE_ERRORS.values(), ids=SHORTAGE_ERRORS.keys())
def test_shortage_must_be_mitigated(changes: dict[str, Any], error: str) -> None:
    values = {
        "phase": "Succeeded",
        "causes": ["CudaOutOfMemory", "Succeeded"],
        "mitigations": "MicroBatchHalved",
    }
    assert shortage_error(values | changes, cpu=False) == error


KILLS_ERRORS = {
    "equal on a CPU": ({}, True, ""),
    "equal on a GPU": ({}, False, ""),
    "no kill of the driver": (
        {"kills": ["engine", "rank"]},
        False,
        "no kill of driver is recorded: TrainerRankLost, Succeeded",
    ),
    "no kill of engine and rank": (
        {"kills": ["driver"]},
        True,
        "no kill of engine and rank is recorded: TrainerRankLost, Succeeded",
    ),
    "different on a CPU": (
        {"largest difference": 1e-9},
        True,
        "parameters differ by 1e-09 from run quickstart (limit 0)",
    ),
    "different on a GPU": ({"largest difference": GPU_DIFFERENCE}, False, ""),
    "too different on a GPU": (
        {"largest difference": 0.0801},
        False,
        "parameters differ by 0.0801 from run quickstart (limit 0.08)",
    ),
    "not a number": (
        {"largest difference": float("nan")},
        False,
        "parameters differ by nan from run quickstart (limit 0.08)",
    ),
    "no other run": (
        {"largest difference": None},
        False,
        "run quickstart left no parameters to compare with",
    ),
}


@pytest.mark.parametrize(
    ("changes", "cpu", "error"), KILLS_ERRORS.values(), ids=KILLS_ERRORS.keys()
)
def test_run_must_survive_all_kills_with_the_same_parameters(
    changes: dict[str, Any], cpu: bool, error: str
) -> None:
    values = {
        "causes": ["TrainerRankLost", "Succeeded"],
        "kills": ["engine", "rank", "driver"],
        "largest difference": 0.0,
    }
    assert kills_error(values | changes, cpu=cpu) == error


@pytest.fixture
def killed_run(tmp_path: Path) -> Path:
    """Return the folder of a killed run, next to that of the undisturbed run with equal weights."""
    folder = tmp_path / "quickstart-killed"
    for each in (folder, tmp_path / UNDISTURBED):
        (each / EXPORT).parent.mkdir(parents=True)
        (each / EXPORT).write_bytes(save(PARAMETERS))
    logs = folder / "checkpoints" / "logs"
    logs.mkdir()
    (logs / "metrics.e1.jsonl").write_text('{"step": 1, "seconds": {"train": 1.0}}\n')
    write_summary(folder, *ATTEMPTS)
    return folder


PARAMETERS = {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float32)}
ATTEMPTS: tuple[dict[str, Any], ...] = (
    {"cause": "Succeeded", "message": "reached step 40"},
    {"cause": "ProgramError", "message": "a warning; the driver was killed by signal 9"},
    {"cause": "TrainerRankLost", "message": "a rank exited", "inPlace": ["RolloutEngineLost: 0"]},
)
"""Attempts of a run with one kill of engine, rank and driver, newest first."""


def write_summary(folder: Path, *attempts: dict[str, Any]) -> None:
    filled = [{"inPlace": [], "lostSteps": 0, "mitigation": "", **each} for each in attempts]
    summary = {"phase": "Succeeded", "step": 40, "attempts": filled}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_kills_are_read_from_the_status(killed_run: Path) -> None:
    values = killed_values(killed_run)
    assert values["kills"] == ["engine", "rank", "driver"]
    assert values["largest difference"] == 0.0
    assert kills_error(values, cpu=True) == ""


def test_failed_driver_is_no_kill(killed_run: Path) -> None:
    done, _, rank = ATTEMPTS
    failed = {"cause": "ProgramError", "message": "KeyError: 'a'; the driver exited with code 1"}
    write_summary(killed_run, done, failed, rank)
    assert killed_values(killed_run)["kills"] == ["engine", "rank"]


def test_largest_difference_of_parameters_is_reported(killed_run: Path) -> None:
    changed = PARAMETERS | {"b": np.array([0, 0.25, -0.5, 0], np.float32)}
    (killed_run / EXPORT).write_bytes(save(changed))
    assert killed_values(killed_run)["largest difference"] == 0.5


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_that_is_not_a_number_is_reported(name: str, killed_run: Path) -> None:
    changed = PARAMETERS | {name: PARAMETERS[name] * np.float32("nan")}
    (killed_run / EXPORT).write_bytes(save(changed))
    assert math.isnan(killed_values(killed_run)["largest difference"])


def test_missing_parameter_is_an_error(killed_run: Path) -> None:
    (killed_run / EXPORT).write_bytes(save({"a": PARAMETERS["a"]}))
    with pytest.raises(KeyError, match="b"):
        killed_values(killed_run)


def test_killed_run_without_undisturbed_run_has_no_difference(killed_run: Path) -> None:
    killed_run.with_name(UNDISTURBED).rename(killed_run.with_name("other"))
    assert killed_values(killed_run)["largest difference"] is None
