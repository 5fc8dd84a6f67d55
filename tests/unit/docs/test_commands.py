"""Every command of README.md and docs/start is executed by a test or a CI step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from raggrpo_cli.kubectl.app import app as kubectl_app
from raggrpo_cli.main import app
from raggrpo_operator.local_runtime.job_folder import JobFolder, State
from support.builders.operator.jobs import make_job
from support.docs.commands import (
    CLUSTER_PAGE,
    PAGES,
    ROOT,
    RUN_BY_UNIT_TEST,
    RUN_ELSEWHERE,
    commands,
    commands_of_api_test,
)
from tools.kind.go_programs import KUBERAY

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
WRITTEN = {page: commands(page) for page in PAGES}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder like a clone of the repository after `make quickstart`."""
    for name in ("crds", "docs", "helm"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    folder = JobFolder(tmp_path / "raggrpo-jobs" / "quickstart")
    folder.path.parent.mkdir()
    folder.acquire()
    folder.save_job(make_job({"checkpoint.path": str(tmp_path / "checkpoints")}))
    folder.save(State(uid="u"))
    folder.release()
    return tmp_path


def test_documented_commands_are_all_tested() -> None:
    executed = {*RUN_BY_UNIT_TEST, *RUN_ELSEWHERE, *commands_of_api_test()}
    unmapped = {
        page.name: lines
        for page in PAGES
        if (lines := [c for c in WRITTEN[page] if c not in executed])
    }
    assert unmapped == {}


def test_command_tables_list_only_documented_commands() -> None:
    written = {command for lines in WRITTEN.values() for command in lines}

    assert [each for each in (*RUN_BY_UNIT_TEST, *RUN_ELSEWHERE) if each not in written] == []


@pytest.mark.parametrize("command", RUN_ELSEWHERE)
def test_source_file_of_documented_command_contains_expected_texts(command: str) -> None:
    file, *texts = RUN_ELSEWHERE[command]
    source = (ROOT / file).read_text(encoding="utf-8")

    assert [text for text in texts if text not in source] == []


@pytest.mark.parametrize("command", RUN_BY_UNIT_TEST)
def test_documented_local_command_succeeds(command: str, workspace: Path) -> None:
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=workspace,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_documented_versions_match_this_release() -> None:
    text = CLUSTER_PAGE.read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [version] = [line.split('"')[1] for line in project.splitlines() if line.startswith("version")]

    assert f"?ref={KUBERAY}" in text
    assert f"raggrpo/trainer:{version}" in text
    manifest = (ROOT / "docs" / "start" / "manifests" / "demo-volume.yaml").read_text()
    assert f"image: raggrpo/trainer:{version}" in manifest


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guides_use_existing_commands_and_options(page: Path) -> None:
    unknown = [line for line in commands(page) if not is_known(line)]

    assert unknown == []


def is_known(line: str) -> bool:
    """Return whether the line's `raggrpo` command and options exist; True for other programs."""
    for prefix, application in (("raggrpo ", app), ("kubectl raggrpo ", kubectl_app)):
        if line.startswith(prefix):
            command = typer.main.get_command(application)
            for word in line.removeprefix(prefix).split():
                command = getattr(command, "commands", {}).get(word, command)
            known = {name for each in command.params for name in each.opts}
            return not hasattr(command, "commands") and known >= set(re.findall(r"--[\w-]+", line))
    return True
