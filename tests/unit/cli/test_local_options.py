"""Options of local commands that are recorded in the job folder."""

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from raggrpo_cli.local_job import LocalJob, load_local_job
from raggrpo_operator.local_runtime.job_folder import JobFolder, State
from support.builders.operator.jobs import make_raw_job

ENDPOINT = {"name": "kb", "url": "http://kb.example/retrieve"}


def make_job_file(folder: Path, **changes: Any) -> Path:
    path = folder / "job.yaml"
    raw = make_raw_job(
        {
            "spec.resources": {"device": "CPU"},
            "spec.retrieval": {"mode": "Prompt", "endpoints": [ENDPOINT]},
            **changes,
        }
    )
    path.write_text(yaml.safe_dump(raw))
    return path


def make_job_folder(path: Path, **state: Any) -> Path:
    folder = JobFolder(path)
    folder.acquire()
    folder.save(State(uid="u", **state))
    folder.release()
    return path


def load(file: Path, folder: Path, **options: Any) -> LocalJob:
    none = {"sets": None, "endpoints": None, "mounts": None}
    return load_local_job(file, folder, **none | options)


def test_mounts_and_endpoints_of_last_run_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_job_folder(
        tmp_path / "job", mounts=[f"work={tmp_path}"], endpoints=["kb=http://127.0.0.1:1/kb"]
    )

    local = load(make_job_file(tmp_path), folder)

    assert local.job.spec.retrieval.endpoints[0].url == "http://127.0.0.1:1/kb"
    assert local.job.spec.checkpoint.path.startswith(str(tmp_path))
    assert (local.mounts, local.endpoints) == (
        [f"work={tmp_path}"],
        ["kb=http://127.0.0.1:1/kb"],
    )
    assert f"using --mount work={tmp_path} of the last run" in capsys.readouterr().err


def test_specified_options_replace_those_of_last_run(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    folder = make_job_folder(
        tmp_path / "job", mounts=[f"work={tmp_path}"], endpoints=["kb=http://127.0.0.1:1/kb"]
    )

    local = load(
        make_job_file(tmp_path),
        folder,
        mounts=[f"work={tmp_path}/new"],
        endpoints=["kb=http://127.0.0.1:2/kb"],
    )

    assert local.job.spec.retrieval.endpoints[0].url == "http://127.0.0.1:2/kb"
    assert local.job.spec.checkpoint.path.startswith(f"{tmp_path}/new")
    assert len(local.mounts) == len(local.endpoints) == 1


def test_options_for_removed_claims_and_endpoints_are_ignored(tmp_path: Path) -> None:
    folder = make_job_folder(
        tmp_path / "job",
        mounts=["gone=/nowhere", f"work={tmp_path}"],
        endpoints=["gone=http://127.0.0.1:1/kb"],
    )

    local = load(make_job_file(tmp_path), folder)

    assert (local.mounts, local.endpoints) == ([f"work={tmp_path}"], [])


def test_damaged_state_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_job_folder(tmp_path / "job")
    (folder / "state.json").write_text("{")

    with pytest.raises(typer.Exit):
        load(make_job_file(tmp_path), folder)

    assert "state.json is damaged" in capsys.readouterr().err
