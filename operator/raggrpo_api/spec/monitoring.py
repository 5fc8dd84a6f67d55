"""`spec.monitoring`: metrics, measurement intervals and logs."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import CONTROLS, ApiModel, OptionalPath
from raggrpo_api.fields.reach import Server

WANDB_PROJECT: Final = rf"^[^/\\#?%:{CONTROLS}]*$"
"""Project names that W&B accepts."""
WANDB_SERVER: Final = "https://api.wandb.ai/"
Every = Annotated[int, Field(ge=1, le=1_000_000)]


class MonitoringMode(StrEnum):
    """Amount of metrics."""

    FULL = "Full"
    LIGHT = "Light"
    OFF = "Off"


class LogLevel(StrEnum):
    """Minimum severity of log messages."""

    DEBUG = "Debug"
    INFO = "Info"
    WARNING = "Warning"
    ERROR = "Error"


class DebugSwitches(ApiModel):
    """Additional log lines at level Info, each with the sample id."""

    model_output: bool = False
    """Log completions."""
    rag_calls: bool = False
    """Log retrieval calls with latency and status, without headers."""
    scoring: bool = False
    """Log the reward terms of each sample."""


class WandbSpec(ApiModel):
    """Weights & Biases: one run for all attempts, with its files in the log folder."""

    project: Annotated[
        str, StringConstraints(pattern=WANDB_PROJECT, max_length=128), Server(WANDB_SERVER)
    ] = ""
    """Project name; empty: off. Set WANDB_API_KEY in env by secretKeyRef."""


class MonitoringSpec(ApiModel):
    """Metrics and logs."""

    mode: MonitoringMode = MonitoringMode.LIGHT
    """Full: all metrics every step. Light: at the intervals below. Off: history, without update
    norms, TensorBoard, W&B and log lines of steps."""
    log_level: LogLevel = LogLevel.INFO
    """Minimum severity of messages from driver, ranks and engines; Debug includes vLLM's."""
    log_every_steps: Every = 10
    """Steps between log lines, and between points in TensorBoard and W&B."""
    history_window: Annotated[int, Field(ge=1, le=1000)] = 20
    """Number of recent steps whose median is the step time, in status and for SlowingDown, and
    which NotLearning evaluates."""
    performance_every_steps: Every = 10
    """Steps between measurements of stage times."""
    gpu_every_steps: Every = 20
    """Steps between measurements of peak GPU memory, the maximum over all ranks."""
    flops_every_steps: Every = 50
    """Steps between estimates of TFLOP/s and, on known GPUs, MFU (dense BF16)."""
    tensorboard_flush_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    """Seconds between flushes of TensorBoard event files."""
    log_dir: OptionalPath = ""
    """Folder of logs, event files and attempt records; empty: <checkpoint.path>/logs."""
    wandb: WandbSpec = WandbSpec()
    """Weights & Biases."""
    debug: DebugSwitches = DebugSwitches()
    """Additional log lines."""
