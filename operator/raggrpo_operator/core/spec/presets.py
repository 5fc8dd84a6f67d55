"""Values of the four presets.

A test compares these values with docs/reference/presets.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from raggrpo_api.spec.job_spec import Preset
from raggrpo_api.spec.monitoring import LogLevel, MonitoringMode
from raggrpo_api.spec.resources import Placement
from raggrpo_api.spec.training import Precision


@dataclass(frozen=True)
class PresetRow:
    """Values of one field in each preset; None: the field's default."""

    path: str
    """Path below `spec`."""
    fast: object = None
    max_performance: object = None
    memory_limited: object = None
    debug: object = None

    def value(self, preset: Preset) -> object:
        """Return the field's value in a preset."""
        return {
            Preset.FAST: self.fast,
            Preset.MAX_PERFORMANCE: self.max_performance,
            Preset.MEMORY_LIMITED: self.memory_limited,
            Preset.DEBUG: self.debug,
        }[preset]


TABLE: tuple[PresetRow, ...] = (
    PresetRow("rollout.n", 3, 3, 3, 2),
    PresetRow("rollout.temperature", 0.6, 0.6, 0.6, 0.6),
    PresetRow("rollout.gpuMemoryUtilization", 0.6, 0.7, 0.4, 0.4),
    PresetRow("rollout.enforceEager", False, False, True, True),
    PresetRow("data.trainBatchSize", 128, 256, 64, 10),
    PresetRow("data.numWorkers", 16, 16, 4, 2),
    PresetRow("data.maxPromptLength", None, None, 500, 100),
    PresetRow("data.maxResponseLength", None, None, 500, 100),
    PresetRow("data.maxSamples", debug=10),
    PresetRow("training.precision", Precision.BF16, Precision.BF16, Precision.BF16, Precision.FP32),
    PresetRow("training.compile", False, True, False, False),
    PresetRow("training.gradientCheckpointing", False, False, True, False),
    PresetRow("training.offPolicySteps", 0, 1, 0, 0),
    PresetRow(
        "monitoring.mode",
        MonitoringMode.LIGHT,
        MonitoringMode.OFF,
        MonitoringMode.LIGHT,
        MonitoringMode.FULL,
    ),
    PresetRow("monitoring.logLevel", debug=LogLevel.DEBUG),
    PresetRow("monitoring.debug.modelOutput", debug=True),
    PresetRow("monitoring.debug.ragCalls", debug=True),
    PresetRow("monitoring.debug.scoring", debug=True),
)


def preset_values(preset: Preset, placement: Placement) -> Mapping[str, object]:
    """Return the values of a preset by path; offPolicySteps is 0 unless disaggregated."""
    values = {row.path: row.value(preset) for row in TABLE if row.value(preset) is not None}
    if placement is not Placement.DISAGGREGATED:
        values["training.offPolicySteps"] = 0
    return values
