"""The staging of a local run as a child process."""

import sys
from collections.abc import Mapping
from pathlib import Path

from raggrpo_api.trainer.staging import StagingProgress, StagingRequest, StagingResult
from raggrpo_operator.core.lifecycle.observed import StagingObserved

from .job_folder import write_atomically
from .processes import Processes, exit_text, read_result


class StagingRun:
    """A running or finished staging, which writes progress and result to files in `folder`."""

    def __init__(
        self,
        processes: Processes,
        request: StagingRequest,
        request_hash: str,
        *,
        folder: Path,
        log_file: Path,
        env: Mapping[str, str],
    ) -> None:
        self._processes, self._request_hash = processes, request_hash
        self._progress, self._result = folder / "staging-progress.json", folder / "staging.json"
        for file in (self._progress, self._result):
            file.unlink(missing_ok=True)
        request_file = folder / "staging-request.json"
        write_atomically(request_file, request.model_dump_json(by_alias=True))
        files = {
            "--request": request_file,
            "--progress": self._progress,
            "--result": self._result,
        }
        options = [text for option, file in files.items() for text in (option, str(file))]
        command = (sys.executable, "-m", "raggrpo_staging", *options)
        self._child = processes.start("staging", command, env, log_file)

    def observe(self) -> StagingObserved:
        """Return progress, result or problem of the staging."""
        code = self._child.exit_code()
        if code is None:
            progress = read_result(self._progress, StagingProgress)
            return StagingObserved(self._request_hash, progress=progress)
        if (result := read_result(self._result, StagingResult)) is not None:
            return StagingObserved(self._request_hash, result)
        problem = f"staging exited with {exit_text(code)}: {self._child.log_tail()}"
        return StagingObserved(self._request_hash, problem=problem)

    def terminate(self) -> None:
        """Terminate the staging process."""
        self._processes.terminate(self._child)
