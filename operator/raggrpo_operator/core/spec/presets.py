"""The four presets as one table, each cell with the row it comes from. Resolves nothing.

docs/presets.md shows the same table; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from raggrpo_api.job import Preset
from raggrpo_api.spec.monitoring import MonitoringMode
from raggrpo_api.spec.resources import Placement
from raggrpo_api.spec.training import Precision

OURS = "ours"


@dataclass(frozen=True)
class Cell:
    """A preset's value for one field and the row of requirements it comes from."""

    value: object
    source: str = OURS


@dataclass(frozen=True)
class PresetRow:
    """One field; None where the preset leaves it to the model's default."""

    path: str
    """Place below `spec`."""
    fast: Cell | None = None
    max_performance: Cell | None = None
    memory_limited: Cell | None = None
    debug: Cell | None = None

    def cell(self, preset: Preset) -> Cell | None:
        """Return the cell of one preset."""
        return {
            Preset.FAST: self.fast,
            Preset.MAX_PERFORMANCE: self.max_performance,
            Preset.MEMORY_LIMITED: self.memory_limited,
            Preset.DEBUG: self.debug,
        }[preset]


TABLE: tuple[PresetRow, ...] = (
    PresetRow("rollout.n", Cell(3, "A1"), Cell(3, "A1"), Cell(3, "A1"), Cell(2)),
    PresetRow(
        "rollout.temperature", Cell(0.6, "A2"), Cell(0.6, "A2"), Cell(0.6, "A2"), Cell(0.6, "A2")
    ),
    PresetRow(
        "rollout.gpuMemoryUtilization", Cell(0.6, "A2"), Cell(0.7, "C4"), Cell(0.4), Cell(0.4)
    ),
    PresetRow(
        "rollout.enforceEager",
        Cell(False, "C7"),
        Cell(False, "C7"),
        Cell(True, "C7"),
        Cell(True, "C7"),
    ),
    PresetRow("data.trainBatchSize", Cell(128, "A2"), Cell(256), Cell(64), Cell(10, "A7")),
    PresetRow("data.numWorkers", Cell(16, "A2"), Cell(16, "A18"), Cell(4, "A24"), Cell(2, "A24")),
    PresetRow("data.maxPromptLength", None, None, Cell(500, "A24"), Cell(100, "A24")),
    PresetRow("data.maxResponseLength", None, None, Cell(500, "A24"), Cell(100, "A24")),
    PresetRow("data.maxSamples", None, None, None, Cell(10, "A7")),
    PresetRow(
        "training.precision",
        Cell(Precision.BF16, "A20"),
        Cell(Precision.BF16, "A20"),
        Cell(Precision.BF16, "A20"),
        Cell(Precision.FP32, "A24"),
    ),
    PresetRow("training.compile", Cell(False), Cell(True, "A24"), Cell(False), Cell(False)),
    PresetRow(
        "training.gradientCheckpointing",
        Cell(False, "A20"),
        Cell(False, "A20"),
        Cell(True, "A31"),
        Cell(False, "A20"),
    ),
    PresetRow("training.offPolicySteps", Cell(0), Cell(1, "B31"), Cell(0), Cell(0)),
    PresetRow(
        "monitoring.mode",
        Cell(MonitoringMode.LIGHT, "A23"),
        Cell(MonitoringMode.OFF, "A24"),
        Cell(MonitoringMode.LIGHT, "A23"),
        Cell(MonitoringMode.FULL, "A7"),
    ),
    PresetRow("monitoring.debug.modelOutput", debug=Cell(True, "A11")),
    PresetRow("monitoring.debug.ragCalls", debug=Cell(True, "A11")),
    PresetRow("monitoring.debug.scoring", debug=Cell(True, "A11")),
)


def preset_values(preset: Preset, placement: Placement) -> Mapping[str, object]:
    """Return path → value; off-policy steps only where the placement allows them."""
    cells = {row.path: row.cell(preset) for row in TABLE}
    values = {path: cell.value for path, cell in cells.items() if cell is not None}
    if placement is not Placement.DISAGGREGATED:
        values["training.offPolicySteps"] = 0
    return values
