"""The shell script that reads a driver log in a pod."""

import subprocess
from pathlib import Path

import pytest

from raggrpo_api.names import DRIVER_LOG
from raggrpo_cli.kubectl.logs import NO_LOG, READ


def read(live: Path, copies: Path, lines: str) -> "subprocess.CompletedProcess[str]":
    arguments = ["logs", str(live), str(copies), "1", "", lines]
    return subprocess.run(
        ["sh", "-c", READ, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("lines", "output"),
    [("+1", "one\ntwo\nthree\n"), ("2", "two\nthree\n"), ("0", ""), ("9", "one\ntwo\nthree\n")],
)
def test_log_script_prints_last_lines_of_live_log_or_copy(
    tmp_path: Path, lines: str, output: str
) -> None:
    copy = tmp_path / "1" / DRIVER_LOG
    copy.parent.mkdir()
    copy.write_text("one\ntwo\nthree\n")

    assert read(tmp_path / "none", tmp_path, lines).stdout == output
    live = copy.rename(tmp_path / "live")
    assert read(live, tmp_path, lines).stdout == output


def test_log_script_lists_attempts_without_log(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    result = read(tmp_path / "none", tmp_path, "+1")
    assert (result.returncode, result.stderr) == (NO_LOG, "2\n")
