"""`spec.monitoring`: what is measured, how often, and where it is written."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import CONTROLS, ApiModel, OptionalPath

WANDB_PROJECT: Final = rf"^[^/\\#?%:{CONTROLS}]*$"
"""What W&B takes."""
Every = Annotated[int, Field(ge=1, le=1_000_000)]


class MonitoringMode(StrEnum):
    """How much is measured."""

    FULL = "Full"
    LIGHT = "Light"
    OFF = "Off"


class LogLevel(StrEnum):
    """From which level on messages are written."""

    DEBUG = "Debug"
    INFO = "Info"
    WARNING = "Warning"
    ERROR = "Error"


class DebugSwitches(ApiModel):
    """Three independent switches; log lines carry sample ids and have the level Info."""

    model_output: bool = False
    """Log completions."""
    rag_calls: bool = False
    """Log retrieval calls with latency and status, never headers."""
    scoring: bool = False
    """Log each sample's reward by term."""


class WandbSpec(ApiModel):
    """Weights & Biases: one run for all attempts, its files in the log folder."""

    project: Annotated[str, StringConstraints(pattern=WANDB_PROJECT, max_length=128)] = ""
    """Project name; empty: off. The key is WANDB_API_KEY in env, by secretKeyRef."""


class MonitoringSpec(ApiModel):
    """Metrics are computed when due and written by a background thread."""

    mode: MonitoringMode = MonitoringMode.LIGHT
    """Full: everything every step. Light: at the intervals below. Off: progress only."""
    log_level: LogLevel = LogLevel.INFO
    """What driver, ranks and engines write to the log; Debug also has vLLM tell what it does."""
    log_every_steps: Every = 10
    """Steps between log lines and points in TensorBoard and W&B."""
    history_window: Annotated[int, Field(ge=1, le=1000)] = 20
    """Last steps whose median is told as time of a step, and judged as slowing down."""
    performance_every_steps: Every = 10
    """Steps between stage times."""
    gpu_every_steps: Every = 20
    """Steps between device memory readings: a step's peak on the fullest rank."""
    flops_every_steps: Every = 50
    """Steps between estimates of TFLOP/s and, of known GPUs, MFU (of dense BF16)."""
    tensorboard_flush_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    """Seconds between flushes of event files."""
    log_dir: OptionalPath = ""
    """Folder of logs, event files and attempts' records; empty: <checkpoint.path>/logs."""
    wandb: WandbSpec = WandbSpec()
    """Weights & Biases."""
    debug: DebugSwitches = DebugSwitches()
    """Verbose logging."""
