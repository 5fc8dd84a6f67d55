"""`unpack.sh` prepares a shell from the parts in .gpu."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.bundle.build import INPUT, pack

SCRIPT = Path(__file__).parents[2] / "gpu" / "bundle" / "unpack.sh"
SOURCES = ("operator", "trainer_image", "tests")
SHOW = """
import engine_module, json, os, shutil
print(json.dumps({
    "cached": os.path.exists(engine_module.__cached__),
    "site": os.path.dirname(engine_module.__file__),
    "input": open(os.environ["QUICKSTART_INPUT"] + "/train").read(),
    "command": shutil.which("raggrpo"),
    "sources": os.environ["PYTHONPATH"].split(":")[1:],
}))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with a bundle of two parts."""
    for name in SOURCES:
        (tmp_path / name).mkdir()
    contents = {"engine": ("engine_module.py", "version = 1"), INPUT: ("train", "questions")}
    (tmp_path / ".gpu").mkdir()
    for part, (name, text) in contents.items():
        file = tmp_path / part / name
        file.parent.mkdir()
        file.write_text(text)
        pack(tmp_path / ".gpu" / f"{part}.tar.xz", file.parent, [file])
    return tmp_path


def source(
    repository: Path, then: str, *, programs: str = "", umask: int = 0o022
) -> "subprocess.CompletedProcess[str]":
    """Source the script as `make gpu-job` does, and run a command.

    `programs` is a folder of programs that replace those of the system.
    """
    temporary = repository / "temporary"
    temporary.mkdir(exist_ok=True)
    folder = os.path.dirname(sys.executable)
    env = {
        "PATH": f"{programs or folder}:{folder}:/usr/bin:/bin",
        "TMPDIR": str(temporary),
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f". {SCRIPT}; {then}"],
        cwd=repository, env=env, capture_output=True, text=True, check=False, umask=umask,
    )  # fmt: skip


def show(repository: Path) -> dict[str, object]:
    completed = source(repository, f"python3 -c '{SHOW}'")
    assert completed.returncode == 0, completed.stderr
    values: dict[str, object] = json.loads(completed.stdout.splitlines()[-1])
    return values


def test_parts_are_unpacked_compiled_and_on_path(repository: Path) -> None:
    shown = show(repository)

    assert shown["cached"]
    assert shown["input"] == "questions"
    assert shown["command"] == f"{shown['site']}/bin/raggrpo"
    assert shown["sources"] == [str(repository / name) for name in SOURCES]


def test_unpacked_files_are_reused_until_bundle_changes(repository: Path) -> None:
    module = repository / "engine" / "engine_module.py"
    first = show(repository)["site"]
    Path(str(first), "engine_module.py").write_text("version = 1  # unchanged")
    assert show(repository)["site"] == first
    assert "unchanged" in Path(str(first), "engine_module.py").read_text()

    module.write_text("version = 2")
    pack(repository / ".gpu" / "engine.tar.xz", module.parent, [module])

    assert show(repository)["site"] != first


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_other_users_have_no_access_to_unpacked_files(umask: int, repository: Path) -> None:
    assert source(repository, "true", umask=umask).returncode == 0
    [site] = (repository / "temporary").iterdir()
    assert stat.S_IMODE(site.stat().st_mode) == 0o700
    assert (site / "quickstart-input" / "train").read_text() == "questions"


@pytest.mark.parametrize("obstacle", ["link", "writable", "file", "foreign"])
def test_folder_of_another_user_is_rejected(obstacle: str, repository: Path) -> None:
    assert source(repository, "true").returncode == 0
    [site] = (repository / "temporary").iterdir()
    (site / "engine_module.py").write_text("raise SystemExit('planted')")
    programs = repository / "programs"
    programs.mkdir()
    if obstacle == "link":
        site.rename(repository / "target")
        site.symlink_to(repository / "target")
    elif obstacle == "writable":
        site.chmod(0o777)
    elif obstacle == "file":
        site.rename(repository / "target")
        site.touch()
        site.chmod(0o700)
    else:  # the folder belongs to whom `id` does not report
        (programs / "id").write_text(f"#!/bin/sh\necho {os.getuid() + 1}\n")
        (programs / "id").chmod(0o755)

    stopped = source(repository, "python3 -c 'import engine_module'", programs=str(programs))

    assert stopped.returncode != 0
    assert "planted" not in stopped.stderr
    message = f"error: {site} is not a folder of mode 700 that belongs to you; remove it"
    assert message in stopped.stderr


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_damaged_bundle_stops_with_remedy(damage: str, repository: Path) -> None:
    for part in (repository / ".gpu").iterdir():
        if damage == "missing":
            part.unlink()
        elif part.name.startswith("engine"):
            part.write_bytes(part.read_bytes()[:50])

    for _ in range(2):
        stopped = source(repository, "echo started")
        assert stopped.returncode != 0
        assert stopped.stdout == ""
        assert "build the parts with 'make gpu-bundle'" in stopped.stderr
