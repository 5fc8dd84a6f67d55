"""A local run's preflight as a child process. Does not judge its result."""

import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from raggrpo_api import names
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.lifecycle.observed import PreflightObserved

from .processes import Processes, exit_text

COMMAND = (sys.executable, "-m", "raggrpo_trainer.preflight")


class PreflightRun:
    """A running or finished preflight; its result is a file in the job folder."""

    def __init__(
        self,
        processes: Processes,
        config: TrainerConfig,
        spec_hash: str,
        *,
        output: Path,
        log_file: Path,
        env: Mapping[str, str],
    ) -> None:
        self._processes, self._spec_hash, self._output = processes, spec_hash, output
        output.unlink(missing_ok=True)
        given = {
            **env,
            **seal(config.to_json()),
            names.ENV_PREFLIGHT_OUTPUT: str(output),
        }
        self._child = processes.start("preflight", COMMAND, given, log_file)

    def wait(self) -> None:
        """Wait until the preflight has ended."""
        self._child.process.wait()

    def observe(self) -> PreflightObserved:
        """Return the result once there is one, or why there will be none."""
        code = self._child.exit_code()
        if code is None:
            return PreflightObserved(self._spec_hash)
        if not self._output.exists():
            problem = f"the preflight ended with {exit_text(code)}: {self._child.log_tail()}"
            return PreflightObserved(self._spec_hash, problem=problem)
        try:
            result = PreflightResult.model_validate_json(self._output.read_bytes())
        except ValidationError as error:
            problem = f"the preflight's result cannot be read: {error}"
            return PreflightObserved(self._spec_hash, problem=problem)
        return PreflightObserved(self._spec_hash, result)

    def terminate(self) -> None:
        """End the process."""
        self._processes.terminate(self._child)
