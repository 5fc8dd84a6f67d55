"""A trainer's driver that reports each step in another monitoring mode, and times it.

Started by monitoring_overhead through Ray Jobs. The driver is the product's own; only its
Reporter is replaced, by three of them that take turns.
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


class ReportersInTurn:
    """A Reporter for each mode; step s goes to the one of mode s modulo 3 alone.

    Light's intervals (10, 20, 50) share no factor with 3: it measures as often as by itself.
    """

    def __init__(self, config: TrainerConfig, epoch: int, *, publish: Publish) -> None:
        self._reporters = {
            mode: Reporter(_in_mode(config, mode), epoch, publish=publish) for mode in MODES
        }
        self._steps: list[dict[str, Any]] = []
        self._cpu = dict.fromkeys(MODES, 0.0)

    def step(self, record: StepRecord) -> None:
        """Report the step in the mode whose turn it is."""
        mode = MODES[record.step % len(MODES)]
        if record.step == len(MODES):  # everything is imported and has run once
            self._cpu = self._thread_seconds()
        began = time.perf_counter()
        self._reporters[mode].step(record)
        ended = time.perf_counter()
        self._steps.append(
            {"step": record.step, "mode": mode, "began": began, "in_call": ended - began}
        )

    def close(self, *arguments: Any) -> None:
        """Write what was measured, and end."""
        seconds = self._thread_seconds()
        spent = {mode: seconds[mode] - self._cpu[mode] for mode in MODES}
        result = {"steps": self._steps, "thread_seconds": spent}
        Path(os.environ[ENV_RESULT]).write_text(json.dumps(result))
        for reporter in self._reporters.values():
            reporter.close(*arguments)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Pass stages, saves and the rest on to all."""

        def call(*arguments: Any, **more: Any) -> None:
            for reporter in self._reporters.values():
                getattr(reporter, name)(*arguments, **more)

        return call

    def _thread_seconds(self) -> dict[MonitoringMode, float]:
        """Return the CPU time that each reporting thread has used."""
        clocks = {
            mode: time.pthread_getcpuclockid(reporter._thread.ident or 0)
            for mode, reporter in self._reporters.items()
        }
        return {mode: time.clock_gettime(clock) for mode, clock in clocks.items()}


def _in_mode(config: TrainerConfig, mode: MonitoringMode) -> TrainerConfig:
    """Return the configuration with another mode and a log folder of its own."""
    monitoring = config.monitoring
    changes = {"mode": mode, "log_dir": f"{monitoring.log_dir}/{mode}"}
    return config.model_copy(update={"monitoring": monitoring.model_copy(update=changes)})


if __name__ == "__main__":
    setattr(driver, "Reporter", ReportersInTurn)  # noqa: B010
    sys.exit(driver.main())
