"""`raggrpo export --push --dir` if the exported folder cannot be completed."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_cli.commands import export
from raggrpo_cli.job_file import FAILED
from raggrpo_cli.main import app
from raggrpo_operator.local_runtime import job_folder
from raggrpo_operator.local_runtime.job_folder import JobFolder, State
from raggrpo_operator.local_runtime.private_files import private_opener
from support.builders.operator.jobs import make_job

EXPORT = """
mkdir -p "$1/adapter"
printf '\\377' > "$1/adapter/adapter_config.json"
echo '{"step": 7, "score": null, "scored_by": ""}'
"""
"""Writes an adapter whose settings are not UTF-8."""


def push(folder: Path) -> tuple[int, str]:
    """Export and push the model of a job; return exit code and output."""
    place = JobFolder(folder / "job")
    place.acquire()
    changes = {"checkpoint.path": str(folder / "checkpoints"), "model.source": "hf://org/base@main"}
    place.save_job(make_job(changes))
    place.save(State(uid="u"))
    place.release()
    arguments = ["--dir", place.path, "-o", folder / "out", "--push", "hf://org/result"]
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "COMMAND", ("sh", "-c", EXPORT))


def test_damaged_adapter_is_reported_in_one_line(tmp_path: Path) -> None:
    code, output = push(tmp_path)
    assert code == ExitCode.CONFIG_ERROR, output
    assert output.splitlines()[1:] == [
        f"{tmp_path}/out has the model, but was not pushed: {tmp_path}/out/adapter/"
        "adapter_config.json cannot be read: it is not UTF-8; delete the folder of the export and "
        "export again"
    ]


def test_full_disk_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, flags: int) -> int:
        if "/out/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return private_opener(path, flags)

    monkeypatch.setattr(job_folder, "private_opener", full)
    code, output = push(tmp_path)
    assert code == FAILED, output
    assert output.splitlines()[1:] == [
        f"{tmp_path}/out has the model, but was not pushed: {tmp_path}/out/summary.json cannot be "
        f"written: No space left on device; free space, delete {tmp_path}/out and export again"
    ]
