"""The preflight of a local run as a child process."""

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
    """A running or finished preflight, which writes its result to a file."""

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
        child_env = {
            **env,
            **seal(config.to_json()),
            names.ENV_PREFLIGHT_OUTPUT: str(output),
        }
        self._child = processes.start("preflight", COMMAND, child_env, log_file)

    def wait(self) -> None:
        """Wait until the preflight has exited."""
        self._child.process.wait()

    def observe(self) -> PreflightObserved:
        """Return the result or the problem of the preflight, or neither while it is running."""
        code = self._child.exit_code()
        if code is None:
            return PreflightObserved(self._spec_hash)
        if not self._output.exists():
            problem = f"preflight exited with {exit_text(code)}: {self._child.log_tail()}"
            return PreflightObserved(self._spec_hash, problem=problem)
        try:
            result = PreflightResult.model_validate_json(self._output.read_bytes())
        except ValidationError as error:
            problem = f"the preflight result is invalid: {error}"
            return PreflightObserved(self._spec_hash, problem=problem)
        return PreflightObserved(self._spec_hash, result)

    def terminate(self) -> None:
        """Terminate the preflight process."""
        self._processes.terminate(self._child)
