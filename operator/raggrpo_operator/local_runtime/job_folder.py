"""The job folder: the state of a local job as files, which are written atomically.

job.yaml  state.json (uid, generation, status)  preflight.json  lock  logs/  summary.json
"""

import fcntl
import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from raggrpo_api.foreign_files import UnsuitableFile, open_regular, read_json
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.limits import MAX_STATE_BYTES
from raggrpo_api.status.job_status import JobStatus, status_to_json
from raggrpo_operator.errors import PermanentError, TransientError

from .private_files import private_folder, private_opener, require_own

STATE = "state.json"
JOB = "job.yaml"
LOCK = "lock"
SUMMARY = "summary.json"
REPORT = "report.html"


@dataclass(slots=True)
class State:
    """State of a job that is saved between runs."""

    uid: str = ""
    generation: int = 0
    retry: int = 0
    """Number of runs after a failure of the job; the value of annotation raggrpo.io/retry."""
    spec: dict[str, Any] = field(default_factory=dict)
    """Spec of the last run, adapted to this machine."""
    mark: str = ""
    """Run mark in the environment of all processes of the last run."""
    temp_dir: str = ""
    """Temporary folder for Ray's files in the last run."""
    mounts: list[str] = field(default_factory=list)
    """`--mount` options of the last run, each as CLAIM=DIR with an absolute folder."""
    endpoints: list[str] = field(default_factory=list)
    """`--endpoint` options of the last run, each as NAME=URL."""
    status: JobStatus = field(default_factory=JobStatus)


_STATE = TypeAdapter(State)


class JobFolder:
    """A job folder, with its lock, saved state and job file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._lock: int | None = None

    def acquire(self) -> None:
        """Create and lock the folder. Raises PermanentError if it is in use or not writable."""
        try:
            private_folder(self.path)
            require_own(self.path)
            private_folder(self.logs)
            self._lock = private_opener(str(self.path / LOCK), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise PermanentError(
                f"the job folder {self.path} cannot be written ({error.strerror}): "
                "specify another one with --dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = (self.path / LOCK).read_text() or "unknown"
            raise PermanentError(
                f"another `raggrpo run` (process {holder}) is using {self.path}: wait until it "
                "exits, or specify another folder with --dir"
            ) from error
        os.ftruncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_in_use(self) -> bool:
        """Return whether a process has locked the folder."""
        try:
            with open_regular(self.path / LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, UnsuitableFile):
            return False
        except BlockingIOError:
            return True
        return False

    def load(self) -> State:
        """Return the saved state, or a new state. Raises PermanentError if the file is damaged."""
        path = self.path / STATE
        if not path.exists():
            return State(uid=uuid.uuid4().hex)
        try:
            raw = read_json(path, MAX_STATE_BYTES)
            if "status" not in raw:
                raise ValueError("it has no status")
            return _STATE.validate_python(raw)
        except OSError as error:
            raise PermanentError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise PermanentError(
                f"{path} is damaged ({type(error).__name__}): remove it to start a new job, which "
                "resumes from the existing checkpoints",
            ) from error

    def save(self, state: State) -> None:
        """Write the state to state.json."""
        raw = asdict(state) | {"status": status_to_json(state.status)}
        write_atomically(self.path / STATE, json.dumps(raw, indent=1))

    def save_job(self, job: RagGrpoJob) -> None:
        """Write the job, as adapted to this machine, to job.yaml."""
        text = yaml.safe_dump(job.manifest(), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / JOB, text)


def write_atomically(path: Path, text: str) -> None:
    """Write a private file atomically, with `?` for lone surrogates.

    Raises OperatorError if the file cannot be written.
    """
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # a killed run may have left a draft
        with open(draft, "x", encoding="utf-8", errors="replace", opener=private_opener) as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        raise TransientError(f"{path} cannot be written: {error.strerror}") from error
