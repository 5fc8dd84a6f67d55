"""Run `python -m raggrpo_staging` in separate processes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from raggrpo_api.trainer.staging import (
    SourceRequest,
    SourceRole,
    StagedSource,
    StagingFailure,
    StagingRequest,
    StagingResult,
)
from raggrpo_staging.folder import MARKER

PART_BYTES = 256 * 1024
FIELD = "spec.model.source"
TIMEOUT_SECONDS = 60


def staging_program(module: str) -> str:
    """Return a program that runs a module with small parts and short timeouts."""
    return f"""
import sys
from raggrpo_staging import draft, lock, retries
draft.PART_BYTES = {PART_BYTES}
lock.ABANDONED_SECONDS, lock.HEARTBEAT_SECONDS = 2.0, 0.2
retries.TRIES, retries.MAX_BACKOFF = 4, 0.1
from raggrpo_staging.{module} import main
sys.exit(main())
"""


def make_model_source(url: str, revision: str = "") -> SourceRequest:
    return SourceRequest(field=FIELD, url=url, role=SourceRole.MODEL, revision=revision)


def make_data_source(url: str, revision: str = "") -> SourceRequest:
    return SourceRequest(field=FIELD, url=url, role=SourceRole.DATA, revision=revision)


def files_in(folder: Path) -> Mapping[str, bytes]:
    """Return the content of the files of a staged folder by relative path."""
    content = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del content[MARKER]
    return content


class Stage:
    """Stages sources into a folder."""

    def __init__(self, base: Path, env: Mapping[str, str]) -> None:
        self.base, self.folder = base, base / "sources"
        self.env = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(base),
            "HF_HUB_DISABLE_XET": "1", **env,
        }  # fmt: skip
        self.use_hub_cache = False
        self._runs = 0

    def start(self, *sources: SourceRequest, prefix: str = "") -> "Run":
        """Start a process; `prefix` is a shell command that precedes it."""
        self._runs += 1
        request = StagingRequest(
            folder=str(self.folder), sources=list(sources), use_hub_cache=self.use_hub_cache
        )
        return Run(request, self.base / f"run-{self._runs}", self.env, prefix)

    def staged(self, source: SourceRequest) -> StagedSource:
        """Stage a source that can be staged."""
        run = self.start(source)
        result = run.result()
        assert result.staged, run.output()
        return result.staged[0]

    def failure(self, source: SourceRequest, prefix: str = "") -> StagingFailure:
        """Stage a source that cannot be staged."""
        run = self.start(source, prefix=prefix)
        result = run.result()
        assert result.failures, run.output()
        assert run.process.returncode in (3, 4)
        assert "Traceback" not in run.output()
        assert result.failures[0].message.startswith(f"{FIELD}: ")
        return result.failures[0]


class Run:
    """A process that stages sources."""

    def __init__(
        self, request: StagingRequest, base: Path, env: Mapping[str, str], prefix: str
    ) -> None:
        base.mkdir()
        self.progress, self._result = base / "progress.json", base / "result.json"
        self._output = base / "output"
        file = base / "request.json"
        file.write_text(request.model_dump_json(by_alias=True))
        command = [
            sys.executable, "-c", staging_program("__main__"), "--request", str(file),
            "--progress", str(self.progress), "--result", str(self._result),
        ]  # fmt: skip
        if prefix:
            command = ["bash", "-c", f'{prefix} && exec "$@"', "bash", *command]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output)

    def result(self) -> StagingResult:
        """Wait for the process and return its result."""
        self.process.wait(TIMEOUT_SECONDS)
        assert self._result.exists(), self.output()
        return StagingResult.model_validate_json(self._result.read_text())

    def output(self) -> str:
        return self._output.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def run_push(
    stage: Stage, folder: Path, target: str, *options: str
) -> "subprocess.CompletedProcess[str]":
    """Upload a folder with the environment of a stage."""
    command = [sys.executable, "-c", staging_program("push"), "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--target", target, *options],
        env=stage.env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done
