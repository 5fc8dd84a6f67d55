import faulthandler
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_trainer.host.stacks import register_stack_dumps

PROGRAM = """
import os, pathlib, signal, sys
from raggrpo_trainer.host.stacks import register_stack_dumps

def running_function():
    os.kill(os.getpid(), signal.SIGUSR1)

register_stack_dumps(pathlib.Path(sys.argv[1]), "rank-0")
running_function()
"""


def test_stacks_are_written_on_signal(tmp_path: Path) -> None:
    folder = tmp_path / "attempts/1"
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], check=True, timeout=60)

    assert "in running_function" in (folder / "stacks-rank-0.txt").read_text()


@pytest.mark.row("A34")
def test_unwritable_log_folder_does_not_end_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "attempts").write_text("a file where the folder should be")

    register_stack_dumps(tmp_path / "attempts/1", "driver")
    faulthandler.unregister(signal.SIGUSR1)

    assert "cannot write the stacks of driver to a file" in caplog.text
