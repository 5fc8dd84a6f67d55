"""A driver that reports each step in the next monitoring mode and measures the time.

Started by monitoring_overhead. Only the Reporter of the real driver is replaced, by one for each
mode that alternate.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raggrpo_api.spec.monitoring import MonitoringMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.driver import attempt as driver
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.progress.reporting_thread import Publish
from raggrpo_trainer.progress.step_record import StepRecord

ENV_RESULT = "RAGGRPO_BENCH_RESULT"
MODES = (MonitoringMode.OFF, MonitoringMode.LIGHT, MonitoringMode.FULL)


class AlternatingReporters:
    """A Reporter for each mode; step s is reported by mode s modulo 3.

    The intervals of Light (10, 20, 50) are coprime to 3, so that it measures as often as alone.
    """

    def __init__(self, config: TrainerConfig, epoch: int, *, publish: Publish) -> None:
        self._reporters = {
            mode: Reporter(_in_mode(config, mode), epoch, publish=publish) for mode in MODES
        }
        self._steps: list[dict[str, Any]] = []
        self._cpu = dict.fromkeys(MODES, 0.0)

    def report_step(self, record: StepRecord) -> None:
        """Report the step in its mode."""
        mode = MODES[record.step % len(MODES)]
        if record.step == len(MODES):  # after a warm-up of imports and code
            self._cpu = self._thread_seconds()
        start = time.perf_counter()
        self._reporters[mode].report_step(record)
        ended = time.perf_counter()
        self._steps.append(
            {"step": record.step, "mode": mode, "started": start, "in_call": ended - start}
        )

    def close(self, *arguments: Any) -> None:
        """Write the measurements and close all reporters."""
        seconds = self._thread_seconds()
        spent = {mode: seconds[mode] - self._cpu[mode] for mode in MODES}
        result = {"steps": self._steps, "thread_seconds": spent}
        Path(os.environ[ENV_RESULT]).write_text(json.dumps(result))
        for reporter in self._reporters.values():
            reporter.close(*arguments)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Forward other calls to all reporters."""

        def call(*arguments: Any, **more: Any) -> None:
            for reporter in self._reporters.values():
                getattr(reporter, name)(*arguments, **more)

        return call

    def _thread_seconds(self) -> dict[MonitoringMode, float]:
        """Return the CPU seconds of each reporting thread."""
        clocks = {
            mode: time.pthread_getcpuclockid(reporter._thread.ident or 0)
            for mode, reporter in self._reporters.items()
        }
        return {mode: time.clock_gettime(clock) for mode, clock in clocks.items()}


def _in_mode(config: TrainerConfig, mode: MonitoringMode) -> TrainerConfig:
    """Return the configuration with another mode and its own log folder."""
    monitoring = config.monitoring
    changes = {"mode": mode, "log_dir": f"{monitoring.log_dir}/{mode}"}
    return config.model_copy(update={"monitoring": monitoring.model_copy(update=changes)})


if __name__ == "__main__":
    setattr(driver, "Reporter", AlternatingReporters)  # noqa: B010
    sys.exit(driver.main())
