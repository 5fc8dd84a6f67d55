import re
from pathlib import Path

import pytest

from raggrpo_api.spec.job_spec import Preset
from raggrpo_api.spec.resources import Placement
from raggrpo_operator.core.spec.presets import TABLE, preset_values
from raggrpo_operator.core.spec.resolve import Origin, resolve
from raggrpo_operator.crd import PRESET_FIELDS
from support.builders.operator.jobs import make_job

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "presets.md"

DESIGN: dict[str, tuple[object, object, object, object]] = {
    # field: Fast, MaxPerformance, MemoryLimited, Debug (None: the model's default)
    "rollout.n": (3, 3, 3, 2),
    "rollout.temperature": (0.6, 0.6, 0.6, 0.6),
    "rollout.gpuMemoryUtilization": (0.6, 0.7, 0.4, 0.4),
    "rollout.enforceEager": (False, False, True, True),
    "data.trainBatchSize": (128, 256, 64, 10),
    "data.numWorkers": (16, 16, 4, 2),
    "data.maxPromptLength": (None, None, 500, 100),
    "data.maxResponseLength": (None, None, 500, 100),
    "data.maxSamples": (None, None, None, 10),
    "training.precision": ("BF16", "BF16", "BF16", "FP32"),
    "training.compile": (False, True, False, False),
    "training.gradientCheckpointing": (False, False, True, False),
    "training.offPolicySteps": (0, 1, 0, 0),
    "monitoring.mode": ("Light", "Off", "Light", "Full"),
    "monitoring.logLevel": (None, None, None, "Debug"),
    "monitoring.debug.modelOutput": (None, None, None, True),
    "monitoring.debug.ragCalls": (None, None, None, True),
    "monitoring.debug.scoring": (None, None, None, True),
}


@pytest.mark.row("A2", "A7")
@pytest.mark.parametrize("column", range(4))
def test_presets_have_documented_values(column: int) -> None:
    preset = list(Preset)[column]
    values = {row.path: row.value(preset) for row in TABLE}
    assert values == {path: row[column] for path, row in DESIGN.items()}


@pytest.mark.row("A24")
@pytest.mark.parametrize("preset", Preset)
def test_preset_values_are_resolved_with_origin_preset(preset: Preset) -> None:
    job = make_job({"preset": preset, "resources": {"gpusPerNode": 1, "cpu": "32"}})
    resolved = resolve(job)

    for path, value in preset_values(preset, Placement.COLOCATED).items():
        assert resolved.origins[path] is Origin.PRESET, path
        block: object = resolved.spec.model_dump(by_alias=True)
        for key in path.split("."):
            assert isinstance(block, dict)
            block = block[key]
        assert block == value, path


@pytest.mark.row("B31")
@pytest.mark.parametrize(
    ("placement", "steps"), [(Placement.COLOCATED, 0), (Placement.DISAGGREGATED, 1)]
)
def test_max_performance_is_off_policy_only_when_disaggregated(
    placement: Placement, steps: int
) -> None:
    values = preset_values(Preset.MAX_PERFORMANCE, placement)
    assert values["training.offPolicySteps"] == steps


def test_preset_fields_in_crd_match_preset_table() -> None:
    coupled = {"algorithm.groupSize"}
    assert {row.path for row in TABLE} | coupled == PRESET_FIELDS


def test_presets_page_matches_preset_table() -> None:
    def shown(value: object) -> str:
        if value is None:
            return "–"
        return str(value).lower() if isinstance(value, bool) else str(value)

    expected = [
        [f"`{row.path}`", *(shown(row.value(preset)) for preset in Preset)] for row in TABLE
    ]

    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]

    assert [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines] == expected
