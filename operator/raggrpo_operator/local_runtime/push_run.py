"""The push of a local run as a child process."""

import sys
from collections.abc import Mapping
from pathlib import Path

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.job_variables import job_variables
from raggrpo_api.names import PUSH_RESULTS
from raggrpo_api.trainer.staging import PushOutcome, StagingProgress
from raggrpo_operator.core.lifecycle.observed import PushObserved

from .processes import Processes, exit_text, read_result


class PushRun:
    """A running or finished push, which writes its outcome to a file."""

    def __init__(
        self,
        processes: Processes,
        job: RagGrpoJob,
        request_hash: str,
        *,
        output: Path,
        log_file: Path,
        env: Mapping[str, str],
    ) -> None:
        self._processes, self._request_hash, self._output = processes, request_hash, output
        self._progress = output.with_name("push-progress.json")
        for file in (self._progress, output):
            file.unlink(missing_ok=True)
        files = ("--progress", str(self._progress), "--result", str(output))
        command = (sys.executable, "-m", PUSH_RESULTS, *files)
        child_env = {**env, **job_variables(job)}
        self._child = processes.start("push", command, child_env, log_file)

    def observe(self) -> PushObserved:
        """Return progress, outcome or problem of the push."""
        code = self._child.exit_code()
        if code is None:
            progress = read_result(self._progress, StagingProgress)
            return PushObserved(self._request_hash, progress=progress)
        if (outcome := read_result(self._output, PushOutcome)) is not None:
            return PushObserved(self._request_hash, outcome)
        problem = f"the push exited with {exit_text(code)}: {self._child.log_tail()}"
        return PushObserved(self._request_hash, problem=problem)

    def terminate(self) -> None:
        """Terminate the push process."""
        self._processes.terminate(self._child)
