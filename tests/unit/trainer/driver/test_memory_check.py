from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Facts
from raggrpo_trainer.driver.memory_check import check_memory
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.measured_device import MeasuredDevice, measure_device, pod_memory
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY
from support.builders.trainer.reports import make_config

GPUS8 = {"resources": {"device": "GPU", "gpusPerNode": 8}}
H100 = MeasuredDevice("NVIDIA H100", 79 * GIB, 78 * GIB, 9)
L4 = MeasuredDevice("NVIDIA L4", 22 * GIB, 22 * GIB, 8)


def make_known_config(
    folder: Path, changes: dict[str, Any] | None = None, facts: Facts = KNOWN_7B
) -> TrainerConfig:
    return make_config(folder, changes).model_copy(update={"facts": facts})


def test_memory_check_accepts_model_that_fits(tmp_path: Path) -> None:
    measured = check_memory(make_known_config(tmp_path, GPUS8), Precision.BF16, [H100] * 8)
    assert measured == "NVIDIA H100 with 79.0 GiB, 78.0 GiB free"


@pytest.mark.row("D11")
@pytest.mark.parametrize(
    ("facts", "devices", "words"),
    [
        (KNOWN_7B.model_copy(update={"parameters": 70_000_000_000}), [H100], "per GPU, "),
        (KNOWN_7B, [H100] * 7 + [L4], "NVIDIA L4 with 22.0 GiB is "),
    ],
    ids=["70B", "one small device"],
)
def test_memory_check_rejects_oversized_model_by_measured_memory(
    facts: Facts, devices: list[MeasuredDevice], words: str, tmp_path: Path
) -> None:
    changes = {"resources": {"device": "GPU", "gpusPerNode": 8, "gpuMemoryGib": 1024}}
    with pytest.raises(TrainerError, match=words) as raised:
        check_memory(make_known_config(tmp_path, changes, facts), Precision.BF16, devices)
    assert raised.value.exit_code is ExitCode.CONFIG_ERROR


def test_engine_share_too_small_for_one_sequence_is_rejected(tmp_path: Path) -> None:
    changes = GPUS8 | {"rollout": {"gpuMemoryUtilization": 0.2}}
    with pytest.raises(TrainerError, match=r"the engine's share of 15\.8 GiB must hold"):
        check_memory(make_known_config(tmp_path, changes), Precision.BF16, [H100] * 8)


def test_memory_check_covers_cpu_pods(tmp_path: Path) -> None:
    here = measure_device("cpu")
    assert 0 < here.free_bytes < here.total_bytes
    on_cpu = {"resources": {"device": "CPU"}}
    config = make_known_config(tmp_path, on_cpu, KNOWN_TINY)
    assert "GiB free" in check_memory(config, Precision.FP32, [here])

    too_large = Facts(parameters=here.total_bytes // 16 + 1, layers=1, hidden_size=1, kv_heads=1)
    with pytest.raises(TrainerError, match=r"training needs .* per pod"):
        check_memory(make_known_config(tmp_path, on_cpu, too_large), Precision.FP32, [here])


def test_memory_check_is_skipped_for_unknown_model_size(tmp_path: Path) -> None:
    measured = check_memory(make_known_config(tmp_path, GPUS8, Facts()), Precision.BF16, [L4])
    assert "not checked" in measured


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1073741824", (GIB, 2**20)), ("max", (4 * GIB, 2 * GIB)), (None, (4 * GIB, 2 * GIB))],
)
def test_pod_memory_is_cgroup_limit_or_machine_memory(
    limit: str | None, expected: tuple[int, int], tmp_path: Path
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {4 * 2**20} kB\nMemAvailable: {2 * 2**20} kB\nHuge: 0\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text(f"{2**20}\n")
    assert pod_memory(tmp_path, meminfo) == expected
