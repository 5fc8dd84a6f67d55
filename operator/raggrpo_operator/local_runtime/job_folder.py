"""The job folder: one local job's state as files, each written whole or not at all.

job.yaml  state.json (uid, generation, status)  preflight.json  lock  logs/  summary.json
"""

import fcntl
import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import JobStatus, status_from_json, status_to_json
from raggrpo_operator.errors import PermanentError, TransientError

STATE = "state.json"
JOB = "job.yaml"
LOCK = "lock"
SUMMARY = "summary.json"
REPORT = "report.html"


@dataclass(slots=True)
class State:
    """What is remembered between two runs of one job."""

    uid: str = ""
    generation: int = 0
    retry: int = 0
    """How often a failed job was begun again; becomes the annotation raggrpo.io/retry."""
    spec: dict[str, Any] = field(default_factory=dict)
    """The specification of the last run, as resolved for this machine."""
    mark: str = ""
    """Mark of the processes of the last run."""
    temp_dir: str = ""
    """Ray's folder of the last run."""
    status: JobStatus = field(default_factory=JobStatus)


class JobFolder:
    """All file access of a local run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._lock: int | None = None

    def acquire(self) -> None:
        """Create the folder and make sure that no other run works in it."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise PermanentError(
                f"the job folder {self.path} cannot be written ({error.strerror}): "
                "choose another one with --dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = (self.path / LOCK).read_text() or "unknown"
            raise PermanentError(
                f"another `raggrpo run` (process {holder}) works in {self.path}: wait for it, or "
                "choose another folder with --dir"
            ) from error
        os.ftruncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())

    def release(self) -> None:
        """Let other runs in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> State:
        """Return the state; a new one where there is none."""
        path = self.path / STATE
        if not path.exists():
            return State(uid=uuid.uuid4().hex)
        try:
            raw = json.loads(path.read_text())
            status = status_from_json(raw.pop("status"))
            return State(status=status, **raw)
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise PermanentError(
                f"{path} is damaged ({type(error).__name__}): remove it to begin a new job; the "
                "checkpoints stay and training goes on from them",
            ) from error

    def save(self, state: State) -> None:
        """Write the state."""
        raw = {
            name: getattr(state, name)
            for name in ("uid", "generation", "retry", "spec", "mark", "temp_dir")
        }
        raw["status"] = status_to_json(state.status)
        write_whole(self.path / STATE, json.dumps(raw, indent=1))

    def save_job(self, job: RagGrpoJob) -> None:
        """Keep the job as it runs here."""
        text = yaml.safe_dump(job.manifest(), sort_keys=False, allow_unicode=True)
        write_whole(self.path / JOB, text)


def write_whole(path: Path, text: str) -> None:
    """Replace a file by rename, so that nobody ever reads half of it; raises OperatorError."""
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise TransientError(f"{path} cannot be written: {error.strerror}") from error
